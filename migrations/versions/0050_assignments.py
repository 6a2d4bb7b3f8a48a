"""Claims that have ended keep what was allocated for them: which GPU a lease had.

Why: to add up what leases cost, and to find the device that fails them.
Locks: `outcome` and `attempt`, access exclusive, for columns without values: no row is written.
Expected duration: instant.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0050_assignments"
down_revision = "0049_keys_of_leases"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Run the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
