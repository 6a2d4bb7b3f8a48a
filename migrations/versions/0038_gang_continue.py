"""Gangs may go on without members that are lost: `on_lost` has the value `continue`.

Why: the comment of a column names it; no table changes.
Locks: `gang`, share update exclusive, for a comment: reads and writes go on.
Expected duration: instant.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0038_gang_continue"
down_revision = "0037_gang_steps"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Run the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
