"""A table for the log lines of attempts.

Why: what a handler logs is kept with its attempt, so that people read it without access to the
node. A row for each line; a claim that logs nothing has none.
Locks: none that matter, the table is new.
Expected duration: under a second.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0002_attempt_log"
down_revision = "0001_tables"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
