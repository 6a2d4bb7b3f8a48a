"""The node that a suspended lease prefers.

Why: a handler that waits may ask to go on where it was; the preference is for its next claim.
Locks: `lease`, access exclusive, for a column without a default: no row is written.
Expected duration: instant.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0019_near_node"
down_revision = "0018_completed_attempts"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column from the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
