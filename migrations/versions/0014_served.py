"""Which queues and tasks nodes serve.

Why: explanations said "could take it now" of leases whose queue no worker polls, or whose task no
worker has a handler for.
Locks: none on tables that are there; nodes that registered before have announced nothing.
Expected duration: milliseconds.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0014_served"
down_revision = "0013_costs"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Change the tables with the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
