"""Is hwqueue faster than other Postgres queues, at every backlog and in batches?

Every queue has a database of its own on one server; they take turns. A job is claimed and then
completed, two commits, by a handler that does nothing and with the same payload. Where a queue has
batches, one call claims a batch and one completes it. hwqueue's own best is complete_leases.
"""

from contextlib import ExitStack
from functools import partial
from statistics import median
from typing import Annotated

import typer

from benchmarks.core.load import Load, take_turns
from benchmarks.core.options import Rounds, Seconds
from benchmarks.core.rates import rate_against
from benchmarks.core.report import Aim, Answer, Figure, at_least
from benchmarks.core.run import Run
from benchmarks.core.server import databases, machine
from lab.peers.hwqueue import Hwqueue, SettlingHwqueue
from lab.peers.peer import Effort, Peer
from lab.peers.registry import AtHand, PeerNames, PeerSql, at_hand
from lab.peers.throughput import measure, usable_batch

OWN = (Hwqueue.name, SettlingHwqueue.name)
BATCH_AIM = at_least(1)
BEST_AIM = at_least(0.7)


def peers(
    ctx: typer.Context,
    *,
    backlogs: Annotated[list[int], typer.Option(help="Jobs waiting, ascending; may be repeated", min=100)] = [
        10_000,
        100_000,
        1_000_000,
    ],
    batches: Annotated[list[int], typer.Option(help="Jobs in a call, beside each one's best", min=1)] = [
        1,
        10,
    ],
    connections: Annotated[int, typer.Option(help="Connections at once", min=1)] = 4,
    seconds: Seconds = 10,
    rounds: Rounds = 3,
    peer: PeerNames = [],
    peer_sql: PeerSql = [],
    delete_done: Annotated[
        bool, typer.Option("--delete-done", help="hwqueue deletes what is done; it keeps it else")
    ] = False,
) -> Answer:
    """Jobs/s of hwqueue over those of other queues in Postgres."""
    run = Run.of(ctx)
    found = at_hand(peer, peer_sql)
    figures: list[Figure] = []
    with ExitStack() as stack:
        dsns = _databases(run, stack, found, Hwqueue(deletes=delete_done))
        for backlog in sorted(backlogs):
            for batch in (*batches, None):
                sides = _sides(found, batch)
                if not sides.keys() - OWN:
                    continue  # nobody to compare with
                named = "each one's best batch" if batch is None else f"batch {batch}"
                cell = f"{backlog:,} waiting, {named}"
                turns = {
                    name: partial(
                        measure,
                        one,
                        dsns[name],
                        backlog,
                        Effort(
                            usable_batch(batch or one.best_batch, backlog, connections),
                            connections,
                            seconds,
                        ),
                    )
                    for name, one in sides.items()
                }
                run.tell(cell)
                loads = take_turns(turns, rounds, run.tell)
                figures += _figures(cell, loads, BEST_AIM if batch is None else BATCH_AIM)
        compared = f"hwqueue / peer, {connections} connections; the aim is against the best"
        facts = machine(dsns[Hwqueue.name])
        return Answer("peers", compared, tuple(figures), ctx.params, facts, found.notes)


def _databases(run: Run, stack: ExitStack, found: AtHand, own: Hwqueue) -> dict[str, str]:
    """A database for each queue, with it in it."""
    everyone: list[Peer] = [own, *found.peers]
    dsns = stack.enter_context(databases(run.dsn, len(everyone)))
    for one, dsn in zip(everyone, dsns, strict=True):
        one.install(dsn)
    named = {one.name: dsn for one, dsn in zip(everyone, dsns, strict=True)}
    return {**named, SettlingHwqueue.name: named[Hwqueue.name]}


def _sides(found: AtHand, batch: int | None) -> dict[str, Peer]:
    """Who takes part: hwqueue and those that have such batches; None: each at its best."""
    if batch is None:
        return {one.name: one for one in (Hwqueue(), *found.peers)}
    able = [one for one in found.peers if batch <= one.best_batch]
    return {one.name: one for one in (Hwqueue(), SettlingHwqueue(), *able)}


def _figures(cell: str, loads: dict[str, list[Load]], aim: Aim) -> list[Figure]:
    """Each way of hwqueue against each peer; the aim is for the faster way."""
    ways = {name: each for name, each in loads.items() if name in OWN}
    others = {name: each for name, each in loads.items() if name not in OWN}
    fastest, best = (max(some, key=partial(_rate, loads)) for some in (ways, others))
    return [
        rate_against(
            f"{cell}: {way} / {name}",
            own,
            each,
            aim if (way, name) == (fastest, best) else None,
            timed=False,
        )
        for way, own in ways.items()
        for name, each in others.items()
    ]


def _rate(loads: dict[str, list[Load]], name: str) -> float:
    return median(load.per_second for load in loads[name])
