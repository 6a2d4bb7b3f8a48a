"""Completed attempts: claims that completed their lease, which a retry of its run runs again.

Why: the outcome of a completed step goes when it runs again; its attempt is to stay.
Locks: `attempt`, access exclusive, to replace a check.
Expected duration: instant, or a second for some millions of attempts, which are read.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0018_completed_attempts"
down_revision = "0017_added_run"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Replace the check from the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
