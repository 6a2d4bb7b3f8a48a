"""Calls about runs are bounded: parents by key, bytes of items by the limit of their queue.

Why: the headers of a step of a traced run name the spans of its parents. To find these its release
read all edges of the workflow, up to 20,000 for each step.
Locks: `workflow_edge`, share, for an index: definitions wait.
Expected duration: instant; seconds with a million edges.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0034_bounds"
down_revision = "0033_gang_places"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Run the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
