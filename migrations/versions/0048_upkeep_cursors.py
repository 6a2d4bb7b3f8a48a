"""Upkeep knows where to go on, and whose a step is.

Why: beside an old snapshot scans for gangs, choices and deliveries walked over all that had been
done; an arrival at the tally of a run read whose run it is, beside the lease that it came from.
Locks: `reap_cursor` and `lease`, access exclusive, for columns with a constant default or without
values: no row is written; all calls wait.
Expected duration: instant.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0048_upkeep_cursors"
down_revision = "0047_folded"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Run the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
