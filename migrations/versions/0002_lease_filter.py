"""Filters of leases by labels, key, times and kind of error.

Why: bulk calls and lists take more keys, and a bulk call hands on which leases of a page it means.
Locks: none that matter, a composite type gets attributes that no table uses.
Expected duration: under a second.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0002_lease_filter"
down_revision = "0001_tables"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the attributes from the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
