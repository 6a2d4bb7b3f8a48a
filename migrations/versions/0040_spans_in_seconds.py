"""Spans are seconds, and may be given where only a time could be.

Why: a day of an interval has 23 or 25 hours where the clocks of a time zone change, so what was
stored in days was an hour off then. And who lets a token or an attestation end "in 90 days" counted
these on a clock of their own.
Locks: `queue` and `shard`, row exclusive, for an update of each row; `shard`, access exclusive, for
a default.
Expected duration: instant, there are few queues.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0040_spans_in_seconds"
down_revision = "0039_planned_leases"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Run the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
