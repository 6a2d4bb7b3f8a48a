"""The keys of leases that are requeued are found one by one.

Why: `lock_keys` returned rows that had to be joined to their leases, and read the keys of a whole
queue for each lease. `held_keys` returns both.
Locks: none; it drops a function.
Expected duration: instant.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0049_keys_of_leases"
down_revision = "0048_upkeep_cursors"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Run the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
