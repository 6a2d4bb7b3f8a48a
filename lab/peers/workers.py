"""How do worker processes compare: hwqueue's, procrastinate's and PgQueuer's, one process each?

The handlers do nothing, so all of it is the worker: its client, its event loop, its batches.
"""

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import typer

from benchmarks.core.load import Load, Opener, drive, take_turns
from benchmarks.core.options import Rounds, Seconds
from benchmarks.core.rates import rate, rate_against
from benchmarks.core.report import Answer
from benchmarks.core.run import Run
from benchmarks.core.server import calm_down, databases, machine
from benchmarks.questions.worker import WorkerOpener
from lab.peers.hwqueue import Hwqueue
from lab.peers.peer import NotAtHand, Peer, top_up
from lab.peers.pgqueuer import PgQueuer
from lab.peers.procrastinate import Procrastinate
from lab.peers.worker_openers import PgQueuerWorker, ProcrastinateWorker

# As its documentation has it for many small jobs.
_PGQUEUER_BATCH = 100


@dataclass(frozen=True)
class _Side:
    """A queue, its database, and what opens its worker."""

    queue: Peer
    dsn: str
    opener: Opener


def workers(
    ctx: typer.Context,
    *,
    concurrency: Annotated[
        int, typer.Option(help="Handlers at once of hwqueue and procrastinate", min=1)
    ] = 100,
    backlog: Annotated[int, typer.Option(help="Waiting at the start of each turn")] = 100_000,
    seconds: Seconds = 10,
    rounds: Rounds = 3,
) -> Answer:
    """Jobs/s of hwqueue's worker over those of other Python workers."""
    run = Run.of(ctx)
    with ExitStack() as stack:
        dsns = stack.enter_context(databases(run.dsn, 3))
        queues: list[Peer] = [Hwqueue(), Procrastinate(), PgQueuer()]
        openers: list[Opener] = [
            WorkerOpener({"dsn": dsns[0]}, concurrency),
            ProcrastinateWorker(dsns[1], concurrency),
            PgQueuerWorker(dsns[2], _PGQUEUER_BATCH),
        ]
        sides: list[_Side] = []
        notes: list[str] = []
        for side in map(_Side, queues, dsns, openers):
            try:
                notes.append(f"{side.queue.name} {side.queue.version()}")
            except NotAtHand as error:
                notes.append(f"{side.queue.name} is not at hand: {error}")
            else:
                side.queue.install(side.dsn)
                sides.append(side)
        turns = {side.queue.name: partial(_turn, side, backlog, seconds) for side in sides}
        (own, loads), *others = take_turns(turns, rounds, run.tell).items()
        figures = (
            rate(own, loads, timed=False),
            *(rate_against(f"/ {name}", loads, each, timed=False) for name, each in others),
        )
        compared = "one worker process of hwqueue / of a peer"
        return Answer("workers", compared, figures, ctx.params, machine(dsns[0]), tuple(notes))


def _turn(side: _Side, backlog: int, seconds: float) -> Load:
    top_up(side.queue, side.dsn, backlog)
    calm_down(side.dsn)
    return drive(side.opener, 1, seconds)
