"""For operators: events, statistics by the minute, tokens of the API; and what claims remember.

Why: why a lease waits, who did what, figures to alert on; leases that ask about others without
walks over the fleet.
Locks: access exclusive on the tables that get columns, for as long as the catalog takes; attempt
is closed to writes while its index by time is built.
Expected duration: milliseconds, and as long as that index takes.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0005_operators"
down_revision = "0004_placement"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Change the tables with the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
