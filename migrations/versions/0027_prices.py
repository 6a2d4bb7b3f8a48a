"""Prices: what room on a device is worth, and which planner may say so.

Why: a node that fills its devices by what each lease is like strands room that few could use. What
is best depends on what waits, which a planner computes every second. `fit_score` and `class_score`
take the curve as an argument, so their old signatures go.
Locks: queue, access exclusive, for the new column: no rewrite, since the default is constant.
Expected duration: instant.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0027_prices"
down_revision = "0026_everywhere"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables of the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
