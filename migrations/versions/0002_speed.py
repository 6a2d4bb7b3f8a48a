"""Claims and upkeep that cost the same however much there is.

Why: a claim reads what a node may run, and what that needs, from one row or one table; scans of
claims and of reap start where live entries begin; the last update of a lease touches no index.
Locks: access exclusive on the eligibility tables (the next claims refill them), on lease while an
index goes, on ready while one is built anew; a row is written for each finished lease.
Expected duration: seconds for each million finished leases or leases with a deadline.
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
