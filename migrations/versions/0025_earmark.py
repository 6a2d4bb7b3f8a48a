"""Earmarks: room that is booked for a reservation while others still use it.

Why: a gang that needs whole nodes waits for ever where small leases take what becomes free.
Locks: `claim`, `queue`, `gang`, `placement_class`, `node_state`, access exclusive, for columns
    without values and two indexes: no row is written.
Expected duration: instant.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0025_earmark"
down_revision = "0024_gang"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns and the index from the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
