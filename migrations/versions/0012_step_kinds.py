"""Kinds of steps: what a step needs that is no task, and when it is due.

Why: steps that sleep or wait have no lease, and end at a time.
Locks: `workflow_step`, `step` and `reap_cursor`, access exclusive, for columns: no row is written.
An index of `step` has no rows in it yet.
Expected duration: a scan of `step`.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0012_step_kinds"
down_revision = "0011_checkpoint"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns and the index from the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
