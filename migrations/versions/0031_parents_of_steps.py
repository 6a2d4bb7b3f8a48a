"""The parents of a step, by key.

Why: the release of a step of a traced run reads its parents; without the index it read all edges
of the workflow, up to 20,000 for each step.
Locks: `workflow_edge`, share: nobody defines a workflow meanwhile.
Expected duration: a second per million edges of definitions.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0031_parents_of_steps"
down_revision = "0030_gang_faces"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the index from the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
