"""procrastinate by the SQL functions that its worker calls (its procrastinate/sql/queries.sql)."""

from dataclasses import dataclass
from typing import Any

from psycopg.types.json import Jsonb

from benchmarks.core.payload import payload
from lab.peers.packages import installed_version
from lab.peers.peer import ANY, Connection, SqlPeer, count, run_script

_SPAWN = """
    select procrastinate_defer_jobs_v1(array_agg(
      row(%s, 'work', 0, null, null, %s::jsonb, null)::procrastinate_job_to_defer_v1))
    from generate_series(1, %s)
"""
_CLAIM = """
    select id, task_name, args from procrastinate_fetch_job_v2(%s::varchar[], %s)
    where id is not null
"""
_COMPLETE = "select procrastinate_finish_job_v1(%s, 'succeeded', %s)"


@dataclass(frozen=True)
class Procrastinate(SqlPeer):
    """procrastinate; `delete_jobs` as its worker's option: by default done jobs are kept."""

    name: str = "procrastinate"
    delete_jobs: bool = False
    best_batch = 1
    routes_by = "queue name"
    cannot = ("claim in batches", "route by tags; a worker names the queues that it serves")

    def version(self) -> str:
        """See `Peer`."""
        return installed_version("procrastinate")

    def install(self, dsn: str) -> None:
        """Apply its schema."""
        from procrastinate.schema import SchemaManager  # noqa: PLC0415 - an optional extra

        run_script(dsn, SchemaManager.get_schema())

    def waiting(self, dsn: str, kind: str = ANY) -> int:
        """Jobs to do in the kind's queue."""
        query = "select count(*) from procrastinate_jobs where status = 'todo' and queue_name = %s"
        return count(dsn, query, kind)

    def connect(self, dsn: str, number: int = 0, kind: str = ANY) -> "ProcrastinateJobs":
        """See `SqlPeer`."""
        return ProcrastinateJobs(dsn, kind, self.delete_jobs)


class ProcrastinateJobs(Connection):
    """See `Jobs`; a registered worker, as its own are."""

    def __init__(self, dsn: str, kind: str, delete_jobs: bool) -> None:
        super().__init__(dsn)
        self._queue = kind
        self._delete_jobs = delete_jobs
        row = self.connection.execute("select procrastinate_register_worker_v1()").fetchone()
        assert row is not None
        self._worker = row[0]

    def spawn(self, count: int) -> None:
        """See `Jobs`."""
        self.connection.execute(_SPAWN, [self._queue, Jsonb(payload()), count], prepare=True)

    def claim(self, quantity: int) -> list[Any]:
        """One job, whatever the quantity."""
        queues = None if self._queue == ANY else [self._queue]
        rows = self.connection.execute(_CLAIM, [queues, self._worker], prepare=True)
        return [row[0] for row in rows]

    def complete(self, claimed: list[Any]) -> None:
        """See `Jobs`."""
        for job in claimed:
            self.connection.execute(_COMPLETE, [job, self._delete_jobs], prepare=True)
