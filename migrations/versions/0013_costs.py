"""What it costs to judge a placement.

Why: one class with many patterns costs as much to judge as hundreds without. Batches of judging and
upkeep are therefore limited by what their classes cost, not by number alone.
Locks: hwqueue.placement_class, access exclusive.
Expected duration: milliseconds; with 100,000 placement classes some seconds, as those rows that
ask something are rewritten.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0013_costs"
down_revision = "0012_logins"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Change the tables with the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
