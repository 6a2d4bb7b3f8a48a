"""Functions that are gone: a claim finds the front of a queue in one way.

Why: an old function beside a new one of the same name would be taken for some calls of it.
Locks: none on tables.
Expected duration: no time.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0017_fleet"
down_revision = "0016_head"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Drop them with the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
