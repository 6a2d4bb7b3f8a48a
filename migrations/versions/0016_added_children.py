"""Added items: what the handler of a step adds to it.

Why: a handler that finds out while it runs what is to be done, such as the pages of a site.
Locks: `map`, access exclusive, for a column with a constant default: no row is written.
Expected duration: instant.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0016_added_children"
down_revision = "0015_nested_run"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table and add the column from the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
