"""Claim tokens go on with another generation when the server recovers without a start.

Why: a backend that is killed makes the server recover, and commits that were not written are lost.
Locks: `shard` and `node_state`, access exclusive, for a column without a value: no row is written;
all calls wait.
Expected duration: instant.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0046_recoveries"
down_revision = "0045_tenants_apart"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Run the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
