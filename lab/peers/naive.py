"""The naive table: `worker_tags @> affinity_tags` in the claim, SKIP LOCKED, state by update."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psycopg.types.json import Jsonb

from benchmarks.core.payload import payload
from lab.peers.peer import ANY, Connection, SqlPeer, count, run_script

_SPAWN = """
    insert into naive_job (affinity_tags, payload)
    select %s::jsonb, %s::jsonb from generate_series(1, %s)
"""
_CLAIM = """
    update naive_job set state = 'claimed'
    where id = any (array(
      select id from naive_job
      where state = 'pending' and (affinity_tags is null or %s @> affinity_tags)
      order by priority desc, id limit %s for update skip locked))
    returning id, payload
"""
_WAITING = """
    select count(*) from naive_job
    where state = 'pending' and affinity_tags is not distinct from %s::jsonb
"""
_COMPLETE = "update naive_job set state = 'done' where id = any (%s)"


@dataclass(frozen=True)
class Naive(SqlPeer):
    """A table of one's own, in lab/peers/naive.sql."""

    name = "naive"
    best_batch = 1000
    routes_by = "worker_tags @> affinity_tags"
    cannot = ("fence a worker that comes back late, retry, expire: it is a table",)

    def version(self) -> str:
        """It has none."""
        return "naive.sql"

    def install(self, dsn: str) -> None:
        """Make the table."""
        run_script(dsn, Path(__file__).with_suffix(".sql").read_text(encoding="utf-8"))

    def waiting(self, dsn: str, kind: str = ANY) -> int:
        """Pending jobs with the kind's tags."""
        return count(dsn, _WAITING, _tags(kind))

    def connect(self, dsn: str, number: int = 0, kind: str = ANY) -> "NaiveJobs":
        """See `SqlPeer`."""
        return NaiveJobs(dsn, kind)


class NaiveJobs(Connection):
    """See `Jobs`."""

    def __init__(self, dsn: str, kind: str) -> None:
        super().__init__(dsn)
        self._job_tags = _tags(kind)
        self._worker_tags = Jsonb({"pool": kind})

    def spawn(self, count: int) -> None:
        """See `Jobs`."""
        self.connection.execute(_SPAWN, [self._job_tags, Jsonb(payload()), count], prepare=True)

    def claim(self, quantity: int) -> list[Any]:
        """See `Jobs`."""
        values = [self._worker_tags, quantity]
        return [row[0] for row in self.connection.execute(_CLAIM, values, prepare=True)]

    def complete(self, claimed: list[Any]) -> None:
        """See `Jobs`."""
        self.connection.execute(_COMPLETE, [claimed], prepare=True)


def _tags(kind: str) -> Jsonb | None:
    return None if kind == ANY else Jsonb({"pool": kind})
