"""A step of a workflow may be a gang.

Why: the ranks of a training run could not be a step, with work before and after them.
Locks: `gang`, access exclusive, for columns without values: no row is written; `lease` and `map`,
share update exclusive, for comments: reads and writes go on.
Expected duration: instant.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0037_gang_steps"
down_revision = "0036_checkpoint_numbers"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Run the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
