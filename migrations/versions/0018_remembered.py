"""What is remembered of classes and nodes: which nodes suit a class, and what a node found blocked.

Why: one node of ten thousand that fell silent, or was cordoned, made all that was remembered of
classes useless: now the nodes that suit stand in bit strings, and are counted at each read. A claim
behind a thousand blocked classes read all of them each time: now a node remembers them, with what
proves that they still are. Functions that others do the work of go.
Locks: class_fleet, class_nodes and class_range, access exclusive, until the upgrade commits.
Expected duration: well below a second. What is remembered is found out again by claims and upkeep.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0018_remembered"
down_revision = "0017_fleet"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Change the tables with the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
