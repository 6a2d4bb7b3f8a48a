"""A column of claims that says that somebody waits for the end of the lease.

Why: a settlement notifies those who wait for a lease, and nobody else. It reads the column in the
row that it deletes anyway.
Locks: `claim`, access exclusive, for a moment: a constant default rewrites nothing.
Expected duration: under a second.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0002_awaited"
down_revision = "0001_tables"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
