"""A task on every node that suits it: a lease on each of them, once or always.

Why: agents and one-off jobs of a fleet need a lease on each node, also on nodes that come later.
Locks: `gang_change`, access exclusive, for a column without values: no row is written.
Expected duration: instant.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0026_everywhere"
down_revision = "0025_earmark"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables and add the column from the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
