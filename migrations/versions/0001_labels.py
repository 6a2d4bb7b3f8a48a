"""All tables, indexes and composite types, with the rows that they begin with.

Why: the schema of the first release.
Locks: none that matter, every object is new.
Expected duration: under a second.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0001_labels"
down_revision = None
branch_labels = ("hwqueue",)
depends_on = None


def upgrade() -> None:
    """Create everything from the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
