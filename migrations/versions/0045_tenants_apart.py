"""Tenants cannot stop each other: earmarks yield and end, sweeps take turns, work has bounds.

Why: one tenant's everywhere tasks, gangs and runs could keep nodes, registrations and sweeps from
all others.
Locks: `queue`, `claim`, `gang`, `everywhere`, `everywhere_node`, `node_state` and `arrival`, access
exclusive, for columns with a constant default or without values, and for indexes of the last two:
no row is written; all calls wait.
Expected duration: instant, but for the index of `arrival`: a second for each million of arrivals.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0045_tenants_apart"
down_revision = "0044_task_syncs"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Run the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
