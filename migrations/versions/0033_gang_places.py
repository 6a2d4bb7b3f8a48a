"""The search for a place of a gang reads all nodes at once.

Why: it asked node by node how many members each has room for. Their labels were carried beside each
answer.
Locks: none on tables; functions are dropped, and `gang_room` is a type that no table uses.
Expected duration: instant.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0033_gang_places"
down_revision = "0032_planner_room"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Run the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
