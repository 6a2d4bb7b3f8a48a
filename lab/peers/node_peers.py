"""graphile-worker and pg-boss, driven by their own client in one Node process.

One process with an event loop serves all connections, so the client costs less here than the
process for each connection that the other queues have.
"""

from dataclasses import asdict, dataclass

import psycopg
from psycopg.types.json import Jsonb

from benchmarks.core.load import Load, RanDryError
from benchmarks.core.payload import payload
from lab.peers.node_program import call, pinned_version
from lab.peers.peer import ANY, KINDS, Effort, count

_FILL_GRAPHILE = """
    select count(*) from graphile_worker.add_jobs(array(
      select row(%s, %s::json, null, null, null, null, null, null)::graphile_worker.job_spec
      from generate_series(1, %s)))
"""
_WAITING_GRAPHILE = """
    select count(*) from graphile_worker._private_jobs j
    join graphile_worker._private_tasks t on t.id = j.task_id
    where j.is_available and t.identifier = %s
"""


@dataclass(frozen=True)
class GraphileWorker:
    """graphile-worker by its runner; batches are its local queue and batched completion."""

    name: str = "graphile-worker"
    best_batch: int = 500
    routes_by: str = "task identifier"
    cannot: tuple[str, ...] = ("route by tags; a worker names its tasks and the flags it refuses",)

    def version(self) -> str:
        """See `Peer`."""
        return pinned_version(self.name)

    def install(self, dsn: str) -> None:
        """Run its migrations."""
        call("graphile-worker.mjs", "install", dsn)

    def fill(self, dsn: str, count: int, kind: str = ANY) -> None:
        """Add jobs by its SQL function."""
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(_FILL_GRAPHILE, [kind, Jsonb(payload()), count])

    def waiting(self, dsn: str, kind: str = ANY) -> int:
        """Available jobs of the kind's task."""
        return count(dsn, _WAITING_GRAPHILE, kind)

    def drive(self, dsn: str, effort: Effort, kind: str = ANY) -> Load:
        """Run its runner; latencies are from job to job: of use with one connection only."""
        return _drive("graphile-worker.mjs", dsn, effort, kind, self.waiting(dsn, kind))


@dataclass(frozen=True)
class PgBoss:
    """pg-boss by its fetch and complete."""

    name: str = "pg-boss"
    best_batch: int = 1000
    routes_by: str = "queue name"
    cannot: tuple[str, ...] = ("route by tags; a worker names the queues that it serves",)

    def version(self) -> str:
        """See `Peer`."""
        return pinned_version(self.name)

    def install(self, dsn: str) -> None:
        """Let it make its schema, and a queue for each kind."""
        call("pg-boss.mjs", "install", dsn, kinds=KINDS)

    def fill(self, dsn: str, count: int, kind: str = ANY) -> None:
        """Add jobs by its insert."""
        call("pg-boss.mjs", "fill", dsn, kind=kind, count=count, payload=payload())

    def waiting(self, dsn: str, kind: str = ANY) -> int:
        """Jobs that nobody has fetched from the kind's queue."""
        query = "select count(*) from pgboss.job where name = %s and state = 'created'"
        return count(dsn, query, kind)

    def drive(self, dsn: str, effort: Effort, kind: str = ANY) -> Load:
        """Loops of fetch and complete, one a connection."""
        return _drive("pg-boss.mjs", dsn, effort, kind, self.waiting(dsn, kind))


def _drive(program: str, dsn: str, effort: Effort, kind: str, expected: int) -> Load:
    if expected == 0:
        raise RanDryError(f"{program} has nothing to do: the backlog is too small for this run")
    printed = call(program, "work", dsn, kind=kind, expected=expected, **asdict(effort))
    return Load(
        seconds=printed["seconds"],
        done=printed["done"],
        per_second=printed["done"] / printed["seconds"],
        p50_ms=printed["p50_ms"],
        p99_ms=printed["p99_ms"],
    )
