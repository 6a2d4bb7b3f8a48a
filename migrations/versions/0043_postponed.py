"""What upkeep could not finish is noted, so that the rest of it goes on.

Why: a part of reap or prune that took longer than statement_timeout undid all others, for ever.
Locks: none that others wait for; a new table and a new type.
Expected duration: instant.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0043_postponed"
down_revision = "0042_generations"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Run the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
