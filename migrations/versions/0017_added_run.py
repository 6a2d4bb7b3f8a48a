"""Added runs: steps that the handler of a step adds to it.

Why: a handler may find out that steps with an order of their own are to be done.
Locks: `map`, access exclusive, for a column with a constant default: no row is written.
Expected duration: instant.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0017_added_run"
down_revision = "0016_added_children"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table and add the column from the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
