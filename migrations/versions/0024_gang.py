"""Gangs: leases that start together or not at all.

Why: distributed work needs all of its nodes at once; half of them wait for nothing.
Locks: `lease`, `claim`, `node_state`, access exclusive, for columns without values: no row is
    written.
Expected duration: instant.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0024_gang"
down_revision = "0023_comments"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables and add the columns from the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
