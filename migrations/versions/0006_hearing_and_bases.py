"""An index of the nodes whose workers take deaths, and since when event ids have their base.

Why: whether one of them serves a lease is asked at each death, so a fleet of thousands of nodes
without hooks must not be read for it. An event of a transaction that was open when the base rose
must not be passed by webhooks and followers.
Locks: `served`, share, for an index; `shard`, access exclusive, for columns with constant defaults:
no row is written.
Expected duration: under a second.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0006_hearing_and_bases"
down_revision = "0005_similar_names"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the index and the columns from the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
