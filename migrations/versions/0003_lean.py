"""Claims and completions in fewer steps.

Why: what every claim looks at is read in one statement, a completion in three, and many leases are
completed by one call. Under an old snapshot a completion no longer reads all claims there were.
Locks: access exclusive on lease, claim and queue while indexes are built anew. A call that holds
one and waits for another is undone as a deadlock (40P01) and can be repeated.
Expected duration: a second or two for each million leases.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0003_lean"
down_revision = "0002_speed"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Change the tables with the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
