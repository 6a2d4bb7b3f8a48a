"""Choices: alternatives of which one runs, each with a placement of its own.

Why: some work can run in several ways, such as on 8 of one kind of GPU or 16 of another.
Locks: `lease`, `gang`, `placement_class`, access exclusive, for columns without values: no row is
    written.
Expected duration: instant.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0029_choice"
down_revision = "0028_during"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables and add the columns from the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
