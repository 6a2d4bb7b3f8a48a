"""Requirements during execution: what runs is asked to stop when one does not hold any more.

Why: a relabelled node, an attestation that expires or a partner that ends may make a place unfit
    for what runs there; until now that counted at the claim alone.
Locks: `reap_cursor`, access exclusive, for a column with a constant default: no row is written;
    `claim`, share update exclusive, for a comment.
Expected duration: instant.
"""

from alembic import op

from hwqueue.schema.files import run_revision_sql

revision = "0028_during"
down_revision = "0027_prices"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the table and add the column from the SQL file beside this one."""
    run_revision_sql(op, __file__)


def downgrade() -> None:
    """Refuse: the schema only moves forward."""
    raise NotImplementedError("hwqueue migrations only move forward; restore a backup instead")
