"""Signals that runs are sent, for their steps to wait for.

Why: a step may wait for what happens outside of the queue.
Locks: `arrival`, share update exclusive, for a comment: reads and writes go on.
Expected duration: under a second: the table is new.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0013_run_signal"
down_revision = "0012_step_kinds"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table from the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
