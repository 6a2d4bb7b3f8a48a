"""Nodes and claims belong to a login.

Why: any worker login could register over any node, inherit its trust, end its claims, and settle
what another one runs. Now the node and its claims carry the role that may act for them, and an
attestation is suspended when another instance or login registers the node.
Locks: node_state, claim and attestation exclusively, until the upgrade commits.
Expected duration: milliseconds; no table is rewritten.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0012_logins"
down_revision = "0011_owner"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Change the tables with the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
