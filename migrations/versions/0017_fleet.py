"""What upkeep finds out of a class and all nodes is remembered in one table, class_fleet.

Why: the views judged every class on every node in every read, upkeep judged them again to tell of
classes that no node may run, and a third time for the estimate of their reach.
Functions of claims that had two ways to find the front of a queue go.
Locks: the two tables that it drops, access exclusive, until the upgrade commits.
Expected duration: well below a second: one row is copied for each class.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0017_fleet"
down_revision = "0016_head"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Change the tables with the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
