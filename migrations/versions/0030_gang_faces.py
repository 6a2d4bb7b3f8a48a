"""Gangs are explained, listed page by page, and counted.

Why: pages of `list_gangs` began by time alone, so gangs of one transaction could fall between two.
Counting gangs by state read all that had ever ended.
Locks: `gang`, share, for two indexes: gangs do not change state meanwhile.
Expected duration: instant; seconds with a million gangs.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0030_gang_faces"
down_revision = "0029_choice"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Run the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
