"""Keys for replica identity, and how claims end.

Why: (to be written).
Locks: none.
Expected duration: milliseconds.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0010_settling"
down_revision = "0009_seen"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Change the tables with the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
