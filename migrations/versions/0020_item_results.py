"""Results of items: step_results tells where each item ran, and filters by state.

Why: a map with failed items is looked at item by item.
Locks: none on tables: functions have another argument or another result.
Expected duration: instant.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0020_item_results"
down_revision = "0019_near_node"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Drop the former functions with the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
