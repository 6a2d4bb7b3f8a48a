"""Which classes a claim may take.

Why: classes that cannot run yet (terms not in force, a lease that they must be with not started)
were tried one by one by each claim; requirements about one lease were unknown to the set-based
look; tries held locks in subtransactions. Rules about single leases are written for what is there.
Locks: access exclusive on node_state, placement_class and class_rule, for columns and indexes.
Expected duration: milliseconds; with many classes the time to read them once.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0008_candidates"
down_revision = "0007_class_marks"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Change the tables with the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
