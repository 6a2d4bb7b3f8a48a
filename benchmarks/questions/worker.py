"""How many leases a second does one worker process run when the handler does nothing?

All of hwqueue's worker is in it: event loop, handlers, heartbeats, batches of its own making.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import typer

from benchmarks.core.fill import QUEUE, TASK, kind, top_up
from benchmarks.core.load import Load, drive, take_turns
from benchmarks.core.options import Rounds, Seconds
from benchmarks.core.payload import payload
from benchmarks.core.queue import create_queue
from benchmarks.core.rates import rate, rate_against
from benchmarks.core.report import Answer
from benchmarks.core.run import Run
from benchmarks.core.server import calm_down, database, machine
from benchmarks.core.worker_session import WorkerSession
from hwqueue.app import App
from hwqueue.worker import Worker, WorkerSettings


def node_name(way: Mapping[str, Any], number: int) -> str:
    """Of one that works this way: a node belongs to a login, or to a token."""
    return f"{'http' if 'url' in way else 'sql'}-{number}"


@dataclass(frozen=True)
class WorkerOpener:
    """Opens workers with an async handler that does nothing; `way`: their settings that say how they call."""

    way: Mapping[str, Any]
    concurrency: int

    def __call__(self, number: int) -> WorkerSession:
        return WorkerSession(partial(self._make, node_name(self.way, number)))

    def _make(self, name: str, count: Callable[[], None]) -> Worker:
        app = App()

        @app.task(TASK)
        async def work(_params: Any) -> None:
            count()

        settings = WorkerSettings(
            **self.way,
            queues=(QUEUE,),
            name=name,
            concurrency=self.concurrency,
            capacity={},
            gpus=(),
            detect=False,
        )
        return Worker(app, settings)


def worker(
    ctx: typer.Context,
    *,
    concurrency: Annotated[list[int], typer.Option(help="Handlers at once, the first is the base", min=1)] = [
        1,
        10,
        100,
    ],
    seconds: Seconds = 10,
    rounds: Rounds = 3,
    backlog: Annotated[int, typer.Option(help="Waiting at the start of each turn")] = 300_000,
) -> Answer:
    """Leases/s of one worker process with a handler that does nothing."""
    run = Run.of(ctx)
    with database(run.dsn) as dsn:
        create_queue(dsn)

        def turn(size: int) -> Load:
            top_up(run, dsn, kind(payload()), backlog)
            calm_down(dsn)
            return drive(WorkerOpener({"dsn": dsn}, size), 1, seconds)

        turns = {f"concurrency {size}": partial(turn, size) for size in concurrency}
        (first, bases), *others = take_turns(turns, rounds, run.tell).items()
        figures = (
            rate(first, bases, timed=False),
            *(rate_against(name, loads, bases, timed=False) for name, loads in others),
        )
        compared = f"one worker process / with concurrency {concurrency[0]}"
        return Answer("worker", compared, figures, ctx.params, machine(dsn))
