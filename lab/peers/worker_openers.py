"""procrastinate's and PgQueuer's own workers, with a handler that does nothing."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from benchmarks.core.worker_session import WorkerSession
from lab.peers.peer import ANY


@dataclass(frozen=True)
class ProcrastinateWorker:
    """Opens a worker that deletes its done jobs, which is its fastest."""

    dsn: str
    concurrency: int

    def __call__(self, number: int) -> WorkerSession:
        return WorkerSession(self._make)

    def _make(self, count: Callable[[], None]) -> "_ProcrastinateRun":
        return _ProcrastinateRun(self.dsn, self.concurrency, count)


class _ProcrastinateRun:
    """See `benchmarks.core.worker_session.AnyWorker`."""

    def __init__(self, dsn: str, concurrency: int, count: Callable[[], None]) -> None:
        from procrastinate import App, PsycopgConnector  # noqa: PLC0415 - an optional extra
        from procrastinate.worker import Worker  # noqa: PLC0415

        self._app = App(connector=PsycopgConnector(conninfo=dsn, max_size=concurrency + 2))

        async def work(**_params: Any) -> None:
            count()

        self._app.task(name="work")(work)
        self._worker = Worker(
            self._app,
            concurrency=concurrency,
            delete_jobs="always",
            install_signal_handlers=False,
        )

    async def run(self) -> None:
        """Work until stopped."""
        async with self._app.open_async():
            await self._worker.run()

    def stop(self) -> None:
        """Finish what runs, then end."""
        self._worker.stop()


@dataclass(frozen=True)
class PgQueuerWorker:
    """Opens a worker over asyncpg and uvloop, its fastest."""

    dsn: str
    batch: int

    def __call__(self, number: int) -> WorkerSession:
        import uvloop  # noqa: PLC0415 - comes with an optional extra

        # This process has nothing else to do.
        asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
        return WorkerSession(self._make)

    def _make(self, count: Callable[[], None]) -> "_PgQueuerRun":
        return _PgQueuerRun(self.dsn, self.batch, count)


class _PgQueuerRun:
    """See `benchmarks.core.worker_session.AnyWorker`."""

    def __init__(self, dsn: str, batch: int, count: Callable[[], None]) -> None:
        self._dsn = dsn
        self._batch = batch
        self._count = count
        self._stopped = asyncio.Event()

    async def run(self) -> None:
        """Work until stopped."""
        import asyncpg  # noqa: PLC0415 - comes with an optional extra
        from pgqueuer import PgQueuer  # noqa: PLC0415
        from psycopg.conninfo import conninfo_to_dict  # noqa: PLC0415

        given = conninfo_to_dict(self._dsn)
        async with asyncpg.create_pool(
            host=given.get("host"),
            port=given.get("port"),
            user=given.get("user"),
            password=given.get("password"),
            database=given.get("dbname"),
            ssl=False,
            min_size=2,
            max_size=4,
        ) as pool:
            worker = PgQueuer.from_asyncpg_pool(pool)

            async def work(_job: Any) -> None:
                self._count()

            worker.entrypoint(ANY)(work)
            worker.shutdown = worker.qm.shutdown = worker.sm.shutdown = self._stopped
            await worker.run(batch_size=self._batch)

    def stop(self) -> None:
        """Finish what runs, then end."""
        self._stopped.set()
