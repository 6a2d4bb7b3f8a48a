"""Tables for durable steps: what handlers have saved, and the signals that leases were sent.

Why: a handler that is run again, after a failure or a suspension, goes on behind its last step.
Locks: none that matter, the tables are new.
Expected duration: under a second.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0011_checkpoint"
down_revision = "0010_run_indexes"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
