"""Table `task`: the spawn options that all leases of a task have, unless told otherwise.

Why: defaults that only Python knew did not hold for leases that SQL, HTTP or the command line
spawn.
Locks: none that matter, every object is new.
Expected duration: under a second.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0002_task_defaults"
down_revision = "0001_tables"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create everything from the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
