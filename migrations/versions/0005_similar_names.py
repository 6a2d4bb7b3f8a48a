"""A function that nothing calls any more is gone.

Why: names are compared by edits, no longer by pairs of letters.
Locks: none that matter.
Expected duration: under a second.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0005_similar_names"
down_revision = "0004_nodes_and_deaths"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Drop it with the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
