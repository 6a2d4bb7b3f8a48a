"""How many leases a second are claimed and settled: by how many connections, in which batches?"""

from collections.abc import Callable
from functools import partial
from typing import Annotated

import typer

from benchmarks.core import flows
from benchmarks.core.fill import filled
from benchmarks.core.load import Load, Opener, drive, take_turns
from benchmarks.core.node import register
from benchmarks.core.options import Connections, Rounds, Seconds
from benchmarks.core.queue import create_queue
from benchmarks.core.rates import rate, rate_against
from benchmarks.core.report import Answer, Figure, at_least
from benchmarks.core.run import Run
from benchmarks.core.server import calm_down, database, databases, machine
from benchmarks.core.sessions import ClaimThenSettle, SettleAndClaim, SpawnSettleAndClaim

Backlog = Annotated[int, typer.Option(help="Waiting at the start of each turn", min=1)]


def connections(
    ctx: typer.Context,
    *,
    counts: Connections = [1, 2, 4, 8, 16, 32, 64],
    seconds: Seconds = 5,
    rounds: Rounds = 3,
    backlog: Backlog = 300_000,
) -> Answer:
    """Leases/s and latency of claim, then settle, with many connections over one."""
    run = Run.of(ctx)
    with database(run.dsn) as dsn:
        create_queue(dsn)
        opener = ClaimThenSettle(dsn, tuple(register(dsn, number) for number in range(max(counts))))
        turns = {
            str(count): filled(run, dsn, backlog, partial(drive, opener, count, seconds)) for count in counts
        }
        loads = take_turns(turns, rounds, run.tell)
        figures = _compare(loads, "connections")
        compared = f"claim, then settle / with {counts[0]} connections"
        return Answer("connections", compared, figures, ctx.params, machine(dsn))


def batches(
    ctx: typer.Context,
    *,
    sizes: Annotated[list[int], typer.Option(help="Leases in a call, the first is the base", min=1)] = [
        1,
        10,
        100,
        1000,
    ],
    count: Annotated[int, typer.Option("--connections", help="Connections at once", min=1)] = 4,
    seconds: Seconds = 5,
    rounds: Rounds = 3,
    backlog: Backlog = 500_000,
) -> Answer:
    """Leases/s in batches over one by one: claim, then settle, and settle_and_claim."""
    run = Run.of(ctx)
    figures: list[Figure] = []
    with database(run.dsn) as dsn:
        create_queue(dsn)
        nodes = tuple(register(dsn, number) for number in range(count))
        kinds: dict[str, Callable[[int], Opener]] = {
            "claim, then settle": partial(ClaimThenSettle, dsn, nodes),
            "settle_and_claim": partial(SettleAndClaim, dsn, nodes),
        }
        for name, make in kinds.items():
            openers: dict[str, Opener] = {str(size): make(size) for size in sizes}
            turns = {
                size: filled(run, dsn, backlog, partial(drive, opener, count, seconds))
                for size, opener in openers.items()
            }
            figures += _compare(take_turns(turns, rounds, run.tell), f"leases a call, {name}")
        compared = f"{count} connections / with {sizes[0]} leases a call"
        return Answer("batches", compared, tuple(figures), ctx.params, machine(dsn))


def chains(
    ctx: typer.Context,
    *,
    count: Annotated[int, typer.Option("--connections", help="Connections at once", min=1)] = 4,
    length: Annotated[int, typer.Option(help="Steps of a run, one after the other", min=2)] = 10,
    seconds: Seconds = 5,
    rounds: Rounds = 3,
    backlog: Backlog = 100_000,
) -> Answer:
    """Leases/s of settle_and_claim through runs of a chain of steps, over plain leases.

    A settlement of a step spawns the next one, so plain leases are measured twice: spawned before,
    and each spawned by a call of its own meanwhile.
    """
    run = Run.of(ctx)
    openers = (SettleAndClaim, SpawnSettleAndClaim, SettleAndClaim)
    with databases(run.dsn, len(openers)) as dsns:
        measures: list[Callable[[], Load]] = []
        for dsn, make in zip(dsns, openers, strict=True):
            create_queue(dsn)
            nodes = tuple(register(dsn, number) for number in range(count))
            measures.append(partial(drive, make(dsn, nodes, 1), count, seconds))
        turns = {
            "plain leases": filled(run, dsns[0], backlog, measures[0]),
            "plain leases and their spawns": filled(run, dsns[1], backlog, measures[1]),
            "chains": _chained(dsns[2], length, backlog, measures[2]),
        }
        plain, spawned, loads = take_turns(turns, rounds, run.tell).values()
        name = f"chains of {length} steps"
        figures = (
            rate("plain leases", plain),
            rate("plain leases and their spawns", spawned),
            rate_against(f"{name} / plain leases", loads, plain),
            rate_against(f"{name} / plain leases and their spawns", loads, spawned, at_least(0.6)),
        )
        compared = f"settle_and_claim, {count} connections"
        return Answer("chains", compared, figures, ctx.params, machine(dsns[0]))


def _chained(dsn: str, length: int, backlog: int, measure: Callable[[], Load]) -> Callable[[], Load]:
    """Submit runs, let the server come to rest, measure."""
    flows.define(dsn, "chain", flows.chain(length))

    def turn() -> Load:
        flows.submit_many(dsn, "chain", backlog // length)
        calm_down(dsn)
        return measure()

    return turn


def _compare(loads: dict[str, list[Load]], what: str) -> tuple[Figure, ...]:
    """A figure for each side; all but the first are told against that one."""
    (first, bases), *others = loads.items()
    return (
        rate(f"{first} {what}", bases),
        *(rate_against(f"{name} {what}", rounds, bases) for name, rounds in others),
    )
