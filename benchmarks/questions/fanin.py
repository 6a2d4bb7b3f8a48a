"""What do maps cost beside plain leases, and how soon does the step after a map start?"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated

import psycopg
import typer
from psycopg.types.json import Jsonb

from benchmarks.core import flows
from benchmarks.core.fill import QUEUE, filled
from benchmarks.core.load import Load, RanDryError, drive, take_turns
from benchmarks.core.node import register
from benchmarks.core.options import Rounds, Seconds
from benchmarks.core.queue import create_queue
from benchmarks.core.rates import rate, rate_against
from benchmarks.core.report import Answer, Figure, at_least, at_most
from benchmarks.core.run import Run
from benchmarks.core.server import calm_down, database, databases, machine
from benchmarks.core.sessions import CLAIM, COMPLETE, SettleAndClaim, SpawnSettleAndClaim
from benchmarks.core.spread import Spread, percentile

RELEASE_MS = 100

_REFILL = 62  # a map spawns so many items at once: a sixteenth of a window of 1,000
_PAUSE = 0.05  # between the sweeps of a worker that settles steps
_SAMPLE = 0.005
_SWEEP = "select hwqueue.advance_workflows()"
_SUBMIT = "select hwqueue.submit_workflow(p_workflow => 'map', p_input => %s)"
# Of maps that have ended since: the spawn of the step after one, from the end of its last item.
_RELEASES = """
    select 1000 * extract(epoch from n.created_at - max(o.finished_at))::float8
    from hwqueue.lease n
    join hwqueue.lease i on i.run_id = n.run_id and i.item_no is not null
    join hwqueue.outcome o on o.shard_id = i.shard_id and o.lease_id = i.lease_id
    where n.run_id is not null and n.item_no is null and n.created_at > %s
    group by n.lease_id, n.created_at
"""
_LOCK_WAITS = """
    select count(*) from pg_stat_activity
    where datname = current_database() and wait_event_type = 'Lock'
      and wait_event in ('transactionid', 'tuple')
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
                opener = SpawnSettleAndClaim(dsn, nodes, 1, _REFILL)
            measures.append(partial(drive, opener, count, seconds))
        held = partial(_beside_an_open_settlement, dsns[3], measures[3])
        turns = {
            "plain leases": filled(run, dsns[0], backlog, measures[0]),
            "plain leases and their spawns": filled(run, dsns[1], backlog, measures[1]),
            "items": _mapped(dsns[2], items, backlog, measures[2]),
            "beside an open settlement": _mapped(dsns[3], items, backlog, held),
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
    settles steps, finds what one of them has left. Beside it: how many sessions were seen to wait
    for another's transaction.
    """
    run = Run.of(ctx)
    seen: list[_Seen] = []
    with database(run.dsn) as dsn:
        create_queue(dsn)
        nodes = tuple(register(dsn, number) for number in range(count))
        measure = partial(drive, SettleAndClaim(dsn, nodes, 1), count, seconds)
        after = flows.step("end", "each")
        for number in range(rounds):
            load, one = _released(dsn, _mapped(dsn, items, backlog, measure, after))
            run.tell(f"round {number + 1}/{rounds}: {load.per_second:,.0f} leases/s")
            seen.append(one)
        facts = machine(dsn)
    waits = Spread.of([float(one.lock_waits) for one in seen])
    figures = [
        Figure.against(
            f"{what} / {RELEASE_MS} ms",
            "ms",
            values=[percentile(one.milliseconds, percent) for one in seen],
            bases=[float(RELEASE_MS)] * rounds,
            aim=at_most(1),
            more={"maps": Spread.of([float(len(one.milliseconds)) for one in seen])},
        )
        for what, percent in (("p50", 50), ("p99", 99))
    ]
    figures.append(Figure("waits for a transaction", "seen", waits))
    compared = f"maps of {items:,}, {count} connections"
    return Answer("releases", compared, tuple(figures), ctx.params, facts)


@dataclass
class _Seen:
    """What was seen of one round.

    Attributes:
        milliseconds: Of each map that ended, until the step after it was spawned.
        lock_waits: Sessions seen to wait for another's transaction, in all samples.
    """

    milliseconds: list[float] = field(default_factory=list)
    lock_waits: int = 0


def _released(dsn: str, turn: Callable[[], Load]) -> tuple[Load, _Seen]:
    """Measure beside sweeps and samples.

    Raises: RanDryError when no map ended.
    """
    seen = _Seen()
    with psycopg.connect(dsn, autocommit=True) as connection:
        [started] = connection.execute("select clock_timestamp()").fetchall()[0]
        with _looking(dsn, seen):
            load = turn()
        seen.milliseconds = [row[0] for row in connection.execute(_RELEASES, [started])]
    if not seen.milliseconds:
        raise RanDryError("no map has ended: take fewer --items or more --seconds")
    return load, seen


@contextmanager
def _looking(dsn: str, seen: _Seen) -> Iterator[None]:
    """Sweep and sample until the block ends."""
    over = threading.Event()

    def sample() -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            swept = 0.0
            while not over.wait(_SAMPLE):
                [(waits,)] = connection.execute(_LOCK_WAITS, prepare=True).fetchall()
                seen.lock_waits += waits
                if time.monotonic() - swept > _PAUSE:
                    connection.execute(_SWEEP, prepare=True)
                    swept = time.monotonic()

    looks = threading.Thread(target=sample)
    looks.start()
    try:
        yield
    finally:
        over.set()
        looks.join()


def _mapped(
    dsn: str, items: int, backlog: int, measure: Callable[[], Load], *after: flows.Step
) -> Callable[[], Load]:
    """Submit runs of one map each, fill their windows, measure."""
    each = flows.step("each", kind="map", over={"$input": []})
    flows.define(dsn, "map", [each, *after])

    def turn() -> Load:
        with psycopg.connect(dsn, autocommit=True) as connection:
            for _ in range(max(1, backlog // items)):
                connection.execute(_SUBMIT, [Jsonb(list(range(items)))])
            for _ in range(2):
                connection.execute(_SWEEP)
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
        try:
            return measure()
        finally:
            connection.rollback()
