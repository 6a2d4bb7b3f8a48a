"""The generation of claim tokens rises at each start; what ends is counted though clocks step back.

Why: a server that crashed with `synchronous_commit = off`, or whose disk was rolled back, gave
tokens again. What ended while the clock was set back was neither counted nor delivered.
Locks: `shard`, `reap_cursor`, `webhook`, `requeued`, `retried_run`, access exclusive, and the
rows of `node_state`, one a node, which are written: claims wait until the upgrade commits.
Expected duration: instant.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0042_generations"
down_revision = "0041_run_keys"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Run the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
