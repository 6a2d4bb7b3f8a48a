"""Placement, all of it: other leases, spread, taints, trust, isolation.

Why: what a lease may ask of a node, beyond what the node is labelled.
Locks: access exclusive on the tables that get columns, for as long as the catalog takes.
Expected duration: milliseconds; no table is rewritten.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0004_placement"
down_revision = "0003_lean"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Change the tables with the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
