"""Is hwqueue faster than pgflow through the items of a map?

Each has a database of its own on one server; they take turns. pgflow's side is what its worker
calls: `read_with_poll`, `start_tasks`, and `complete_task` for each task.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.core.load import Load, drive, take_turns
from benchmarks.core.maps import Seen, looking, mapped
from benchmarks.core.node import register
from benchmarks.core.options import Rounds, Seconds
from benchmarks.core.queue import create_queue
from benchmarks.core.rates import rate_against
from benchmarks.core.report import Answer, Figure
from benchmarks.core.run import Run
from benchmarks.core.server import calm_down, databases, machine
from benchmarks.core.sessions import ClaimThenSettle, SettleAndClaim
from benchmarks.core.spread import Spread
from lab.peers.peer import NotAtHand
from lab.peers.pgflow import Pgflow, Tasks

PGFLOW = "pgflow"
_MAPS = 3  # of hwqueue at the start of a turn


def maps(
    ctx: typer.Context,
    *,
    pgflow: Annotated[
        Path | None, typer.Option(help="dist/supabase/migrations of npm's @pgflow/core")
    ] = None,
    pgmq: Annotated[Path | None, typer.Option(help="pgmq's SQL, 1.5 or newer")] = None,
    items: Annotated[int, typer.Option(help="Items of a map", min=2, max=100_000)] = 10_000,
    batches: Annotated[
        list[int], typer.Option(help="Items that a worker takes at once; may be repeated", min=1)
    ] = [1, 10],
    connections: Annotated[int, typer.Option(help="Connections at once", min=1)] = 8,
    seconds: Seconds = 10,
    rounds: Rounds = 3,
) -> Answer:
    """Items/s of hwqueue through maps over those of pgflow."""
    run = Run.of(ctx)
    peer = Pgflow(pgflow, pgmq)
    try:
        note = f"pgflow {peer.version()}"
    except NotAtHand as error:
        raise typer.BadParameter(f"pgflow is not at hand: {error}") from error
    figures: list[Figure] = []
    with databases(run.dsn, 3) as dsns:
        *own, other = dsns
        peer.install(other)
        for dsn in own:
            create_queue(dsn)
        nodes = [tuple(register(dsn, number) for number in range(connections)) for dsn in own]
        for batch in batches:
            openers: dict[str, SettleAndClaim | ClaimThenSettle] = {
                "settle_and_claim": SettleAndClaim(own[0], nodes[0], batch),
                "claim, then settle": ClaimThenSettle(own[1], nodes[1], batch),
            }
            turns: dict[str, Callable[[], Load]] = {
                name: _swept(opener, items, partial(drive, opener, connections, seconds))
                for name, opener in openers.items()
            }
            measure = partial(drive, Tasks(other, batch), connections, seconds)
            turns[PGFLOW] = partial(_turn, peer, other, items, measure)
            run.tell(f"batches of {batch}")
            loads = take_turns(turns, rounds, run.tell)
            figures += [
                rate_against(f"{name} / {PGFLOW}, batches of {batch}", loads[name], loads[PGFLOW])
                for name in openers
            ]
            done = Spread.of([float(load.done) for load in loads[PGFLOW]])
            figures.append(Figure(f"{PGFLOW}, batches of {batch}", "items done", done))
        facts = machine(other)
    compared = f"maps of {items:,}, {connections} connections"
    return Answer("maps", compared, tuple(figures), ctx.params, facts, (note,))


def _swept(
    opener: SettleAndClaim | ClaimThenSettle, items: int, measure: Callable[[], Load]
) -> Callable[[], Load]:
    """A turn on several maps beside sweeps, which workers make, too: without them windows run dry.

    One is not enough: in batches it may be over before the clock starts.
    """
    turn = mapped(opener.dsn, items, _MAPS * items, measure)

    def measured() -> Load:
        with looking(opener.dsn, Seen()):
            return turn()

    return measured


def _turn(peer: Pgflow, dsn: str, items: int, measure: Callable[[], Load]) -> Load:
    """Start a run where there is no map to work on, let the server come to rest, measure."""
    if peer.waiting(dsn) < items // 2:
        peer.submit(dsn, items)
    calm_down(dsn)
    return measure()
