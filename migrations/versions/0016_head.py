"""Claims of one lease from the head of one or several queues, in four statements.

Why: most claims are of that kind, and each statement costs microseconds. Leases of queues that keep
no completed ones go when they complete: how long such a lease waited is kept in its claim.
Locks: the rows of hwqueue.low_water that have no mark; hwqueue.claim and hwqueue.outcome, access
exclusive; until the upgrade commits.
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
