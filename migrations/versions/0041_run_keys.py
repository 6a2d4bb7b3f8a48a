"""A run tells the key that its producer gave it.

Why: the run of one night could not be told from that of the next one, though each had its date.
Locks: none but those of the catalog, for a function that is made again.
Expected duration: instant.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0041_run_keys"
down_revision = "0040_spans_in_seconds"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Run the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
