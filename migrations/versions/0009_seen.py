"""What has been seen to end.

Why: while any transaction of the server stayed open, every claim judged the same new classes again
and rewrote the list of those that it had judged. Now a profile and a node keep the ids of the
transactions that were running when they were last judged.
Locks: profile, profile_queue, node_state and reap_cursor exclusively, placement_class against writes.
Expected duration: milliseconds, and a second for a million classes (an index is made again).
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0009_seen"
down_revision = "0008_candidates"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Change the tables with the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
