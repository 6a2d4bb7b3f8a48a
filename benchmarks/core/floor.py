"""The floor: a bare table, two statements, SKIP LOCKED. What a claim costs when it asks nothing."""

from dataclasses import dataclass
from pathlib import Path

import psycopg
from psycopg.types.json import Jsonb

from benchmarks.core.payload import payload

CLAIM = """
    update floor set state = 1
    where id = (select id from floor where state = 0 order by id limit 1 for update skip locked)
    returning id, payload
"""
COMPLETE = "update floor set state = 2 where id = %s"
INSERT = "insert into floor (payload) values (%s)"
COPY = "copy floor (payload) from stdin"
_TOP_UP = """
    insert into floor (payload) select %s from generate_series(
      1, %s - (select count(*) from floor where state = 0))
"""


def create_floor(dsn: str) -> None:
    """Make the table."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(Path(__file__).with_suffix(".sql").read_bytes())


def top_up_floor(dsn: str, ready: int) -> None:
    """Add jobs until so many are ready."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(_TOP_UP, [Jsonb(payload()), ready])


@dataclass(frozen=True)
class FloorOpener:
    """Sessions that claim and complete one job a step, in two commits."""

    dsn: str

    def __call__(self, number: int) -> "FloorSession":
        return FloorSession(self.dsn)


class FloorSession:
    """One connection to the floor."""

    def __init__(self, dsn: str) -> None:
        self._connection = psycopg.connect(dsn, autocommit=True)

    def step(self) -> int:
        """Claim a job and complete it."""
        row = self._connection.execute(CLAIM, prepare=True).fetchone()
        if row is None:
            return 0
        self._connection.execute(COMPLETE, [row[0]], prepare=True)
        return 1

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
