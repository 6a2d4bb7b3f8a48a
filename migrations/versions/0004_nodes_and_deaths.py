"""What nodes leave behind, deaths without a handler, and how many leases a worker runs.

Why: `node_state` kept the epoch of every node for ever; a floor for epochs replaces the rows of
nodes that are gone. Hooks for dead leases are to hear of those that died without a handler.
Explanations are to say that workers are full.
Locks: `shard` and `served`, access exclusive, for columns with constant defaults: no row is
written.
Expected duration: under a second.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0004_nodes_and_deaths"
down_revision = "0003_webhook"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns from the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
