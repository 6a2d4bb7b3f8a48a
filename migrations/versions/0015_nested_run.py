"""Nested runs: a step may be a run of another workflow.

Why: workflows are put together of others, and end as one.
Locks: `run` and `step`, access exclusive, for columns, and indexes of `run` that have no rows in
them yet.
Expected duration: two scans of `run`.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0015_nested_run"
down_revision = "0014_maps"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns and the indexes from the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
