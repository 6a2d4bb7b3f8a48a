"""Which classes a claim may take.

Why: each claim tried one by one the classes that cannot run yet (a term is not in force, or the
lease to be with has not started), and each try held locks in a subtransaction. The statement that
asks which classes are blocked did not know requirements about one lease; their rules are now rows
of class_rule, and the upgrade writes those of existing classes.
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
