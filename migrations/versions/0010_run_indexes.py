"""Indexes of runs that go on, and of runs by their end.

Why: metrics count both at each scrape, however many runs that have ended are kept.
Locks: `run`, share, for two indexes: submissions and ends of runs wait.
Expected duration: a second for each million runs.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0010_run_indexes"
down_revision = "0009_near"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the indexes from the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
