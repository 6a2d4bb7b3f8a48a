"""Figures of runs of workflows (how many have ended, how, how long they took) and their traces.

Why: a gauge of the last hour cannot be summed up, and says nothing of durations. A span of a step
could not be linked to those of its parents.
Locks: `step`, access exclusive, for a column without a default: no row is written. What ended
before is not counted.
Expected duration: instant.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0022_run_totals"
down_revision = "0021_explained_release"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables from the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
