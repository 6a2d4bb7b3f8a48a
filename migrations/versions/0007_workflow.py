"""Workflows: definitions, runs and steps, and what counts towards the release of a step.

Why: steps that come after other steps, released by the settlement of their parents.
Locks: `lease`, `claim`, `outcome` and `reap_cursor`, access exclusive, for columns: no row is
written.
Expected duration: under a second: the tables are new, the new columns are null.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0007_workflow"
down_revision = "0006_hearing_and_bases"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the tables and add the columns from the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
