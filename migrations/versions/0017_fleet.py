"""Every registered node judged for a class in groups of nodes that are alike.

Why: dry runs and explanations judge thousands of nodes, most of which are alike in what is asked.
Locks: none but the catalogue's.
Expected duration: milliseconds.
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
