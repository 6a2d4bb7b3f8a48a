"""PgQueuer by the SQL that its worker sends, taken from its own query builder.

The same statements as through its client, without the cost of that: it would be slower in Python.
"""

import json
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import uuid4

import psycopg

from benchmarks.core.payload import payload
from lab.peers.packages import installed_version
from lab.peers.peer import ANY, Connection, SqlPeer, count, run_script


@dataclass(frozen=True)
class PgQueuer(SqlPeer):
    """PgQueuer with durable tables, its default, and the autovacuum settings that it advises."""

    name = "pgqueuer"
    best_batch = 1000
    routes_by = "entrypoint"
    cannot = ("route by tags; a worker names the entrypoints that it serves",)

    def version(self) -> str:
        """See `Peer`."""
        return installed_version("pgqueuer")

    def install(self, dsn: str) -> None:
        """Run what `pgq install` and `pgq autovac` run."""
        from pgqueuer.adapters.persistence.qb import (  # noqa: PLC0415 - an optional extra
            QueryBuilderEnvironment,
        )

        builder = QueryBuilderEnvironment()
        run_script(dsn, builder.build_install_query())
        run_script(dsn, builder.build_optimize_autovacuum_query())

    def waiting(self, dsn: str, kind: str = ANY) -> int:
        """Queued jobs of the kind's entrypoint."""
        query = "select count(*) from pgqueuer where status = 'queued' and entrypoint = %s"
        return count(dsn, query, kind)

    def connect(self, dsn: str, number: int = 0, kind: str = ANY) -> "PgQueuerJobs":
        """See `SqlPeer`."""
        return PgQueuerJobs(dsn, kind)


class PgQueuerJobs(Connection):
    """See `Jobs`; its SQL numbers parameters as Postgres does, hence raw cursors."""

    def __init__(self, dsn: str, kind: str) -> None:
        from pgqueuer.adapters.persistence.qb import (  # noqa: PLC0415 - an optional extra
            QueryQueueBuilder,
        )

        super().__init__(dsn)
        self._entrypoint = kind
        self._worker = uuid4()
        self._builder = QueryQueueBuilder()
        self._enqueue = self._builder.build_enqueue_query()
        self._log = self._builder.build_log_job_query()
        self._cursor: psycopg.RawCursor[Any] = psycopg.RawCursor(self.connection)

    def spawn(self, count: int) -> None:
        """See `Jobs`."""
        columns: tuple[list[Any], ...] = (
            [0] * count,
            [self._entrypoint] * count,
            [json.dumps(payload()).encode()] * count,
            [timedelta(0)] * count,
            [None] * count,
            [None] * count,
        )
        self._cursor.execute(self._enqueue.encode(), columns, prepare=True)

    def claim(self, quantity: int) -> list[Any]:
        """See `Jobs`; as its worker without limits of concurrency asks."""
        query = self._builder.build_dequeue_query(
            batch_size=quantity,
            entrypoints=[self._entrypoint],
            concurrency_limits=[0],
            queue_manager_id=self._worker,
            global_concurrency_limit=None,
            heartbeat_timeout=timedelta(seconds=30),
        )
        rows = self._cursor.execute(query.sql.encode(), query.args, prepare=True).fetchall()
        return [row[0] for row in rows]

    def complete(self, claimed: list[Any]) -> None:
        """See `Jobs`."""
        successful, tracebacks = ["successful"] * len(claimed), [None] * len(claimed)
        values = [claimed, successful, tracebacks]
        self._cursor.execute(self._log.encode(), values, prepare=True)
