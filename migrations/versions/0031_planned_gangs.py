"""A planner proposes places for gangs.

Why: functions that look for the place of a gang have one more argument, the place to try first.
Locks: none that others wait for.
Expected duration: instant.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0031_planned_gangs"
down_revision = "0030_gang_faces"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Run the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
