"""A table for how far claims have come.

Why: handlers report progress, and the last report stays with the attempt. Only claims that report
have a row, so the others cost nothing. `get_lease` returns a column more, and so is made again.
Locks: none that matter, the table is new.
Expected duration: under a second.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0003_progress"
down_revision = "0002_awaited"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
