"""How large tables are, and how many dead rows are in them."""

from dataclasses import dataclass
from pathlib import Path

import psycopg

_QUERY = Path(__file__).with_suffix(".sql").read_bytes()


@dataclass(frozen=True)
class Size:
    """One table.

    Attributes:
        table_bytes: Without indexes.
        index_bytes: All of its indexes.
        dead: Rows, as the statistics count them.
    """

    table_bytes: int
    index_bytes: int
    dead: int

    @property
    def mebibytes(self) -> float:
        """With indexes."""
        return (self.table_bytes + self.index_bytes) / 2**20


Sizes = dict[str, Size]
"""By table."""


def sizes(dsn: str) -> Sizes:
    """All tables that were written to."""
    with psycopg.connect(dsn) as connection:
        rows = connection.execute(_QUERY).fetchall()
    return {row[0]: Size(row[1], row[2], row[3]) for row in rows}


def total(of_all: Sizes) -> Size:
    """All tables together."""
    return Size(
        sum(size.table_bytes for size in of_all.values()),
        sum(size.index_bytes for size in of_all.values()),
        sum(size.dead for size in of_all.values()),
    )
