"""Who released the lease of a step: a column of what explain_lease returns.

Why: somebody who looks at a lease asks why it was spawned, and by what.
Locks: none.
Expected duration: instant.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0021_explained_release"
down_revision = "0020_item_results"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Drop the old function by the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
