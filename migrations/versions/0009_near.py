"""Steps near other steps, runs that are unique while they run, origins of placements.

Why: a step may ask for the place where another one ran; a submission may find a run of its key.
Locks: `workflow_step` and `run_key`, access exclusive, for columns without values: no row is
written.
Expected duration: under a second: the new columns are null.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0009_near"
down_revision = "0008_kept_arrivals"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns from the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
