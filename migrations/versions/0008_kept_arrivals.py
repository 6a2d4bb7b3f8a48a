"""What sweeps, settlements and prune read of workflows: indexes, children of steps, marks of prune.

Why: hundreds of changes that wait for an old transaction kept sweeps from all other arrivals. A
chain of steps need not read edges. Outcomes of steps that are kept were read by each prune.
Locks: `arrival`, `workflow_step` and `prune_cursor`, access exclusive, for two indexes and columns:
no row is written.
Expected duration: under a second: `arrival` is mostly empty, the new columns hold nothing.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0008_kept_arrivals"
down_revision = "0007_workflow"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create indexes and columns from the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
