"""Functions that are gone: what they did stands where it was called, or is done by others.

Why: the same in fewer places.
Locks: none beyond those of every upgrade.
Expected duration: well below a second.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0018_lean"
down_revision = "0017_fleet"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Drop the functions with the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
