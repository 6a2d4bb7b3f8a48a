"""Claims of one lease from the head of one or several queues, in four statements.

Why: most claims are of that kind, and each statement costs microseconds.
Locks: the rows of hwqueue.low_water that have no mark, until the upgrade commits.
Expected duration: well below a second: that table has a few rows for each queue.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0016_head"
down_revision = "0015_outcome"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Change the tables with the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
