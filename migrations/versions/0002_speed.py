"""Cheaper claims: needs beside eligibility, low-water marks, finished leases apart.

Why: a claim reads the classes a node may run, what they need and how they score from one table; it
starts its scans where live entries begin; the last update of a lease touches no index.
Locks: access exclusive on the eligibility tables (they are refilled by the next claims) and on lease
while its index goes; rows of finished leases are copied.
Expected duration: seconds for each million finished leases.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0002_speed"
down_revision = "0001_core"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Change the tables with the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
