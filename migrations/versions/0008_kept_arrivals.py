"""Indexes that keep changes of runs' states apart from arrivals that can be worked off at once.

Why: hundreds of changes that wait for an old transaction kept sweeps from all other arrivals.
Locks: `arrival`, access exclusive, for a moment: it is mostly empty.
Expected duration: under a second.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0008_kept_arrivals"
down_revision = "0007_workflow"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the indexes from the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
