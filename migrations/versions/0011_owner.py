"""An owner that is no superuser; who did what.

Why: an event said who acted in the caller's own words alone; events and tokens now keep the login,
too. Any worker could shorten the retention of events, so it is the shard's now, set by an admin.
Any login of the database hears notifications, so they carry a digest keyed by the shard's key.
Before this revision the upgrade hands everything in the schema over to hwqueue_owner.
Locks: access exclusive on every table of the schema while it changes hands (once), and on event,
api_token and shard.
Expected duration: milliseconds; shard has a row or two, the other columns have no default.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0011_owner"
down_revision = "0010_settling"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Change the tables with the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
