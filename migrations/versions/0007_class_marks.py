"""Low-water marks of classes.

Why: behind a lease that nobody may run, claims walked all that was claimed since a snapshot.
Locks: low_water, briefly.
Expected duration: milliseconds.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0007_class_marks"
down_revision = "0006_completed"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Change the tables with the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
