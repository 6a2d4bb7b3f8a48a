"""What do maps cost beside plain leases, and how soon does the step after a map start?"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated

import psycopg
import typer

from benchmarks.core import flows, maps
from benchmarks.core.fill import QUEUE, TASK, filled
from benchmarks.core.load import Load, RanDryError, drive, take_turns
from benchmarks.core.node import register
from benchmarks.core.options import Rounds, Seconds
from benchmarks.core.queue import IDLE, create_idle_queue, create_queue
from benchmarks.core.rates import rate, rate_against
from benchmarks.core.report import Answer, Figure, at_least, at_most
from benchmarks.core.run import Run
from benchmarks.core.server import database, databases, machine
from benchmarks.core.sessions import (
    CLAIM,
    COMPLETE,
    SeasonedSettleAndClaim,
    SettleAndClaim,
    SpawnSettleAndClaim,
)
from benchmarks.core.spread import Spread, percentile

RELEASE_MS = 100

_REFILL = 62  # a map spawns so many items at once: a sixteenth of a window of 1,000
# Of maps that have ended since: the spawn of the step after one, from the end of its last item.
_RELEASES = """
    select 1000 * extract(epoch from n.created_at - max(o.finished_at))::float8
    from hwqueue.lease n
    join hwqueue.lease i on i.run_id = n.run_id and i.item_no is not null
    join hwqueue.outcome o on o.lease_id = i.lease_id
    where n.run_id is not null and n.item_no is null and n.created_at > %s
    group by n.lease_id, n.created_at
"""
Connections = Annotated[int, typer.Option("--connections", help="Connections at once", min=1)]
Items = Annotated[int, typer.Option(help="Items of a map", min=1, max=100_000)]
Backlog = Annotated[int, typer.Option(help="Waiting at the start of each turn", min=1)]


def fanin(
    ctx: typer.Context,
    *,
    count: Connections = 8,
    items: Items = 10_000,
    seconds: Seconds = 5,
    rounds: Rounds = 3,
    backlog: Backlog = 100_000,
) -> Answer:
    """Leases/s of settle_and_claim through the items of maps, over plain leases.

    Settlements of items spawn the next ones, so plain leases are measured twice: spawned before,
    and spawned meanwhile, as many in a call as a map spawns at once.
    """
    run = Run.of(ctx)
    with databases(run.dsn, 4) as dsns:
        measures: list[Callable[[], Load]] = []
        for number, dsn in enumerate(dsns):
            create_queue(dsn)
            nodes = tuple(register(dsn, number) for number in range(count))
            opener = SettleAndClaim(dsn, nodes, 1)
            if number == 1:
                opener = SpawnSettleAndClaim(dsn, nodes, 1, ({"task": TASK},) * _REFILL)
            measures.append(partial(drive, opener, count, seconds))
        held = partial(_beside_an_open_settlement, dsns[3], measures[3])
        turns = {
            "plain leases": filled(run, dsns[0], backlog, measures[0]),
            "plain leases and their spawns": filled(run, dsns[1], backlog, measures[1]),
            "items": maps.mapped(dsns[2], items, backlog, measures[2]),
            "beside an open settlement": maps.mapped(dsns[3], items, backlog, held),
        }
        plain, spawned, loads, beside = take_turns(turns, rounds, run.tell).values()
        name = f"items of maps of {items:,}"
        held_name = "items, one of them settled in a transaction left open"
        figures = (
            rate("plain leases", plain),
            rate("plain leases and their spawns", spawned),
            rate_against(f"{name} / plain leases", loads, plain),
            rate_against(f"{name} / plain leases and their spawns", loads, spawned, at_least(0.8)),
            rate_against(f"{held_name} / items", beside, loads, at_least(0.9)),
        )
        compared = f"settle_and_claim, {count} connections"
        return Answer("fanin", compared, figures, ctx.params, machine(dsns[0]))


def releases(
    ctx: typer.Context,
    *,
    count: Connections = 8,
    items: Items = 100,
    seconds: Seconds = 5,
    rounds: Rounds = 3,
    backlog: Backlog = 100_000,
) -> Answer:
    """Milliseconds from the end of the last item of a map to the spawn of the step after it.

    Two settlements at once do not wait for each other: a sweep, every 50 ms as a worker sweeps that
    settles steps, finds what one of them has left. The end is when the last settlement read the
    clock, before its commit. Beside it: how many sessions were seen to wait for another's
    transaction. Maps of 10,000: --items 10000 --backlog 10000, one map a round.
    """
    run = Run.of(ctx)
    seen: list[maps.Seen] = []
    with database(run.dsn) as dsn:
        create_queue(dsn)
        create_idle_queue(dsn)
        nodes = tuple(register(dsn, number) for number in range(count))
        opener = SeasonedSettleAndClaim(dsn, nodes, 1, IDLE)
        measure = partial(drive, opener, count, seconds)
        turn = maps.mapped(dsn, items, backlog, measure, flows.step("end", "each"))
        for number in range(rounds):
            load, one = _released(dsn, turn)
            run.tell(f"round {number + 1}/{rounds}: {load.per_second:,.0f} leases/s")
            seen.append(one)
        facts = machine(dsn)
    compared = f"maps of {items:,}, {count} connections"
    return Answer("releases", compared, tuple(_release_figures(seen)), ctx.params, facts)


def _release_figures(seen: Sequence[maps.Seen]) -> list[Figure]:
    """Percentiles of each round, of all rounds together, and waits for transactions."""
    of_rounds = [
        Figure.against(
            f"{what} of a round / {RELEASE_MS} ms",
            "ms",
            values=[percentile(one.milliseconds, percent) for one in seen],
            bases=[float(RELEASE_MS)] * len(seen),
            aim=at_most(1),
            more={"maps": Spread.of([float(len(one.milliseconds)) for one in seen])},
        )
        for what, percent in (("p50", 50), ("p99", 99))
    ]
    every = [milliseconds for one in seen for milliseconds in one.milliseconds]
    together = Figure.against(
        f"p99 of all {len(every)} maps / {RELEASE_MS} ms",
        "ms",
        values=[percentile(every, 99)],
        bases=[float(RELEASE_MS)],
        aim=at_most(1),
    )
    waits = Spread.of([float(one.lock_waits) for one in seen])
    return [*of_rounds, together, Figure("waits for a transaction", "seen", waits)]


def _released(dsn: str, turn: Callable[[], Load]) -> tuple[Load, maps.Seen]:
    """Measure beside sweeps and samples.

    Raises: RanDryError when no map ended.
    """
    seen = maps.Seen()
    with psycopg.connect(dsn, autocommit=True) as connection:
        [started] = connection.execute("select clock_timestamp()").fetchall()[0]
        with maps.looking(dsn, seen):
            load = turn()
        seen.milliseconds = [row[0] for row in connection.execute(_RELEASES, [started])]
    if not seen.milliseconds:
        raise RanDryError("no map has ended: take fewer --items or more --seconds")
    return load, seen


def _beside_an_open_settlement(dsn: str, measure: Callable[[], Load]) -> Load:
    """Measure while a transaction is open that has completed one item."""
    node = register(dsn, 1_000)
    with psycopg.connect(dsn) as connection:
        lease, token, _ = connection.execute(CLAIM, [QUEUE, node.node_id, node.epoch, 1]).fetchall()[0]
        connection.commit()
        connection.execute(COMPLETE, [lease, token])
        try:
            return measure()
        finally:
            connection.rollback()
