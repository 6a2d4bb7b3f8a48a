"""Composite types for what functions hand to each other together.

Why: functions took up to 17 parameters. What belongs together is one parameter now, so that a call
says what it passes, and a new field changes one type instead of every signature on the way.
Locks: ACCESS EXCLUSIVE on functions and types for the rest of the upgrade; no table is touched.
Expected duration: under a second.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0003_types"
down_revision = "0001_tables"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the types, and drop the functions whose signature or result they change."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
