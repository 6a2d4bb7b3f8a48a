"""How many leases a second are claimed and settled: by how many connections, in which batches?"""

from collections.abc import Callable
from functools import partial
from typing import Annotated

import psycopg
import typer
from psycopg.types.json import Jsonb

from benchmarks.core import flows
from benchmarks.core.fill import QUEUE, kind, top_up
from benchmarks.core.load import Load, Opener, drive, take_turns
from benchmarks.core.node import register
from benchmarks.core.options import Connections, Rounds, Seconds
from benchmarks.core.payload import payload
from benchmarks.core.queue import create_queue
from benchmarks.core.rates import rate, rate_against
from benchmarks.core.report import Answer, Figure, at_least
from benchmarks.core.run import Run
from benchmarks.core.server import calm_down, database, databases, machine
from benchmarks.core.sessions import (
    CLAIM,
    COMPLETE,
    ClaimThenSettle,
    SettleAndClaim,
    SpawnSettleAndClaim,
)

Backlog = Annotated[int, typer.Option(help="Waiting at the start of each turn", min=1)]


def connections(
    ctx: typer.Context,
    *,
    counts: Connections = [1, 2, 4, 8, 16, 32, 64],  # noqa: B006
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
            str(count): _turn(run, dsn, backlog, partial(drive, opener, count, seconds))
            for count in counts
        }
        loads = take_turns(turns, rounds, run.tell)
        figures = _compare(loads, "connections")
        compared = f"claim, then settle / with {counts[0]} connections"
        return Answer("connections", compared, figures, ctx.params, machine(dsn))


def batches(
    ctx: typer.Context,
    *,
    sizes: Annotated[
        list[int], typer.Option(help="Leases in a call, the first is the base", min=1)
    ] = [1, 10, 100, 1000],  # noqa: B006
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
                size: _turn(run, dsn, backlog, partial(drive, opener, count, seconds))
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
            "plain leases": _turn(run, dsns[0], backlog, measures[0]),
            "plain leases and their spawns": _turn(run, dsns[1], backlog, measures[1]),
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


def _chained(
    dsn: str, length: int, backlog: int, measure: Callable[[], Load]
) -> Callable[[], Load]:
    """Submit runs, let the server come to rest, measure."""
    flows.define(dsn, "chain", flows.chain(length))

    def turn() -> Load:
        flows.submit_many(dsn, "chain", backlog // length)
        calm_down(dsn)
        return measure()

    return turn


def fanin(
    ctx: typer.Context,
    *,
    count: Annotated[int, typer.Option("--connections", help="Connections at once", min=1)] = 4,
    items: Annotated[int, typer.Option(help="Items of a map", min=1, max=100_000)] = 10_000,
    seconds: Seconds = 5,
    rounds: Rounds = 3,
    backlog: Backlog = 100_000,
) -> Answer:
    """Leases/s of settle_and_claim through the items of maps, over plain leases."""
    run = Run.of(ctx)
    with databases(run.dsn, 3) as (plain, mapped, held):
        measures: dict[str, Callable[[], Load]] = {}
        for dsn in (plain, mapped, held):
            create_queue(dsn)
            nodes = tuple(register(dsn, number) for number in range(count + 1))
            measures[dsn] = partial(drive, SettleAndClaim(dsn, nodes, 1), count, seconds)
        turns = {
            "plain leases": _turn(run, plain, backlog, measures[plain]),
            "items": _mapped(mapped, items, backlog, measures[mapped]),
            "beside an open settlement": _mapped(
                held, items, backlog, partial(_beside_an_open_settlement, held, measures[held])
            ),
        }
        bases, loads, beside = take_turns(turns, rounds, run.tell).values()
        figures = (
            rate("plain leases", bases),
            rate_against(f"items of maps of {items}", loads, bases, at_least(0.5)),
            rate_against("items, one of them settled in a transaction left open", beside, bases),
        )
        compared = f"settle_and_claim, {count} connections / through plain leases"
        return Answer("fanin", compared, figures, ctx.params, machine(plain))


def _mapped(dsn: str, items: int, backlog: int, measure: Callable[[], Load]) -> Callable[[], Load]:
    """Submit runs of one map each, fill their windows, measure."""
    flows.define(dsn, "map", [flows.step("each", kind="map", over={"$input": []})])

    def turn() -> Load:
        with psycopg.connect(dsn, autocommit=True) as connection:
            for _ in range(max(1, backlog // items)):
                connection.execute(
                    "select hwqueue.submit_workflow(p_workflow => 'map', p_input => %s)",
                    [Jsonb(list(range(items)))],
                )
            for _ in range(2):
                connection.execute("select hwqueue.advance_workflows()")
        calm_down(dsn)
        return measure()

    return turn


def _beside_an_open_settlement(dsn: str, measure: Callable[[], Load]) -> Load:
    """Measure while a transaction is open that has completed one item."""
    node = register(dsn, 1_000)
    with psycopg.connect(dsn) as connection:
        lease, token, _ = connection.execute(
            CLAIM, [QUEUE, node.node_id, node.epoch, 1]
        ).fetchall()[0]
        connection.commit()
        connection.execute(COMPLETE, [lease, token])
        return measure()


def _turn(run: Run, dsn: str, backlog: int, measure: Callable[[], Load]) -> Callable[[], Load]:
    """Fill up, let the server come to rest, measure."""

    def turn() -> Load:
        top_up(run, dsn, kind(payload()), backlog)
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
