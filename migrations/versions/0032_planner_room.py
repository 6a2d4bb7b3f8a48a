"""What a planner found of the room on GPUs is kept, for dashboards and monitoring.

Why: how many GPUs could be in use at most was in the planner's log alone.
Locks: `planner`, access exclusive, for columns without values: planners and metrics wait.
Expected duration: instant.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0032_planner_room"
down_revision = "0031_planned_gangs"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Run the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
