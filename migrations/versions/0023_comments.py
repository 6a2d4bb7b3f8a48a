"""Comments: a row of every table, and columns in the field's words.

Why: half of the tables had no comment, and some columns were described in words of our own.
Locks: each table, share update exclusive: reads and writes go on.
Expected duration: instant.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0023_comments"
down_revision = "0022_run_totals"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Write the comments of the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
