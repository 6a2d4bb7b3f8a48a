"""An index of the nodes whose workers take deaths.

Why: whether one of them serves a lease is asked at each death, so a fleet of thousands of nodes
without hooks must not be read for it.
Locks: `served` share, for a moment: registrations wait.
Expected duration: under a second.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0007_hearing_nodes"
down_revision = "0004_nodes_and_deaths"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the index from the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
