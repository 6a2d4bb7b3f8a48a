"""Workers may set the defaults of their tasks, and say for which tasks they declare some.

Why: a lease that was not spawned by its app had no placement until somebody called hwqueue task
sync, and whoever spawned it was told nothing.
Locks: `task` and `served`, access exclusive, for columns with a constant default or without values:
no row is written; spawns and registrations wait.
Expected duration: instant.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0044_task_syncs"
down_revision = "0043_postponed"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Run the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
