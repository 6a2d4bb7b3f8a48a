"""Helpers with one caller stand in it: a function of SQL may have 120 lines.

Why: the signatures, comments and scaffolding of helpers with one caller cost more than they told.
Locks: none of tables; nothing calls these functions any more.
Expected duration: instant.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0047_folded"
down_revision = "0046_recoveries"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Run the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
