"""Keys that are free again: the spawn option `unique`.

Why: a lease may be the only open one of its kind, or the only one for a time.
Locks: idempotency, access exclusive, for an empty column: spawns with a key wait.
Expected duration: under a second.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0003_unique"
down_revision = "0002_lease_filter"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column and the attributes from the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
