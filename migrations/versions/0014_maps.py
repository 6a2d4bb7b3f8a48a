"""Maps: steps that run their task once for each item of a list.

Why: a fan-out whose width is known when its run is under way, and its fan-in.
Locks: `lease`, access exclusive, for a column, and an index without rows that reads the table once;
`tally`, access exclusive, for a column: no row is written.
Expected duration: a second for each few million leases.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0014_maps"
down_revision = "0013_run_signal"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables and add the column from the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
