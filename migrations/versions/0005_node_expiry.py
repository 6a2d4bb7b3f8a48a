"""How long a node may be silent before it is deregistered: `shard.node_expiry`, 7 days.

Why: nodes of machines that are gone stayed silent for ever, and so did the alert about them.
Locks: `shard`, access exclusive, for a moment.
Expected duration: under a second; the default writes no row.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0005_node_expiry"
down_revision = "0001_tables"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
