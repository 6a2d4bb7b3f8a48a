"""The floor: a bare table, two statements, SKIP LOCKED. What a claim costs when it asks nothing."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

from benchmarks.core.load import RanDryError
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


def claim_job(connection: psycopg.Connection[Any]) -> int:
    """Claim a job; its id.

    Raises: RanDryError when none is left.
    """
    row = connection.execute(CLAIM, prepare=True).fetchone()
    if row is None:
        raise RanDryError("the floor ran out of jobs: these sizes do not fit together")
    return int(row[0])


def complete_job(connection: psycopg.Connection[Any], job: int) -> None:
    """Complete a claimed job."""
    connection.execute(COMPLETE, [job], prepare=True)


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
        try:
            job = claim_job(self._connection)
        except RanDryError:
            return 0
        complete_job(self._connection, job)
        return 1

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
