"""Gangs may start with fewer members than they have; the others join later.

Why: a job that can grow waited until there was room for its largest size.
Locks: `gang`, access exclusive, for two columns and a small index that is built again.
Expected duration: instant; seconds with a million gangs that wait.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0035_min_size"
down_revision = "0034_bounds"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Run the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
