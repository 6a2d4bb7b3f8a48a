"""What is remembered of a class and all nodes holds while nodes fall silent or are cordoned.

Why: one node of ten thousand that fell silent, or was cordoned, made all that is remembered
useless. Now the nodes that suit a class are remembered as bit strings, and counted at each read.
Locks: class_fleet and class_nodes, access exclusive, until the upgrade commits.
Expected duration: well below a second. What is remembered is found out again by upkeep.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0018_fleet_facts"
down_revision = "0017_fleet"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Change the tables with the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
