"""For operators: events, statistics by the minute, tokens of the HTTP API.

Why: why a lease waits, who did what, and figures to alert on.
Locks: new tables; the mark of `prune`, which nobody waits for.
Expected duration: milliseconds.
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
