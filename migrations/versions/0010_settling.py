"""Replica identities, and which database a shard is kept in.

Why: Postgres refuses updates and deletes of tables without a replica identity as soon as a
publication has them, so four tables stopped settlements and `prune`. A copy or a restore in the
same cluster could not be told from its original, so tokens repeated.
Locks: access exclusive on those four tables, shard and node_state, until the upgrade commits.
Expected duration: milliseconds; no table is rewritten.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0010_settling"
down_revision = "0009_seen"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Change the tables with the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
