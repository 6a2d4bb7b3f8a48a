"""Webhooks: who is told of which events, and what is to be sent.

Why: a receiver on the network learns of events without asking for them.
Locks: none that matter, every object is new.
Expected duration: under a second.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0003_webhook"
down_revision = "0002_attempt_log"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables from the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
