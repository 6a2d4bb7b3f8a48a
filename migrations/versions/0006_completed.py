"""Completions as two lists in settle_and_claim.

Why: half the cost of the same completions written as JSON.
Locks: none but the catalog's.
Expected duration: milliseconds.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0006_completed"
down_revision = "0005_operators"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Change the tables with the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
