"""What a planner does with single leases is counted, for monitoring.

Why: how many of them nodes fetched, and how many were held in vain, was in no log or metric.
Locks: `planner`, access exclusive, for columns with a constant default or without values: no row is
written; planners and metrics wait.
Expected duration: instant.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0039_planned_leases"
down_revision = "0038_gang_continue"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Run the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
