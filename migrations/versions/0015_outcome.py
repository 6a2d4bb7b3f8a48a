"""How a lease ended, in a table of its own.

Why: more than half of a settlement was the update of the lease's row: a dead tuple, and after each
checkpoint an image of its page. A settlement now deletes the claim and inserts one row.
Locks: hwqueue.lease and hwqueue.finished, access exclusive, until the upgrade commits.
Expected duration: seconds for each million leases that have finished and are kept: their ends are
copied and indexed. `prune` first where that is too long. hwqueue.lease is not rewritten: results
and errors that were in it go with their leases.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0015_outcome"
down_revision = "0014_served"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Change the tables with the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
