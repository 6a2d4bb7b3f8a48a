"""What a node found blocked is remembered from one claim to the next, with what proves it.

Why: a claim behind 1,000 blocked classes read all of them each time, and found the same.
How well nodes suit a class is known as long as the best and the worst live, not for one timeout.
Functions of claims take or return something else than they did.
Locks: class_range, access exclusive, until the upgrade commits.
Expected duration: well below a second.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0018_candidates"
down_revision = "0017_fleet"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Change the tables with the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
