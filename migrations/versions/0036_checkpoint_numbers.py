"""Checkpoints are numbered, and open waits and signals are found by index.

Why: saving one read all that the lease had saved, and a signal all that it was sent.
Locks: `checkpoint`, access exclusive, for a column with a constant default and two indexes: no row
is written; `lease_signal`, share, for two indexes: signals of leases wait.
Expected duration: instant; 1 s for a million checkpoints and 2 to 3 s for a million signals, of
which the indexes read all.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0036_checkpoint_numbers"
down_revision = "0035_min_size"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Run the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
