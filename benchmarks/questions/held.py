"""Does a settlement of a map that stays open hold up the others, and how soon is it made up for?"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated
from uuid import UUID

import psycopg
import typer

from benchmarks.core import flows, maps
from benchmarks.core.fill import QUEUE
from benchmarks.core.load import Load, drive
from benchmarks.core.node import Node, register
from benchmarks.core.options import Rounds, Seconds
from benchmarks.core.queue import create_queue
from benchmarks.core.rates import rate_against
from benchmarks.core.report import Answer, Figure, at_least, at_most
from benchmarks.core.run import Run
from benchmarks.core.server import calm_down, databases, machine
from benchmarks.core.sessions import CLAIM, COMPLETE, Held, SettleAndClaim, settle_and_claim
from benchmarks.core.spread import Spread

RELEASE_MS = 1_000

_DRAINED = 100  # items a call, once the rate is known
_RUN_OF = "select l.run_id from hwqueue.lease l where l.lease_id = %s"
_NOW = "select clock_timestamp()"
_AFTER = """
    select 1000 * extract(epoch from l.created_at - %s)::float8 from hwqueue.lease l
    where l.run_id = %s and l.item_no is null
"""
_LONGEST = 60.0  # seconds until a release counts as lost


@dataclass
class _Side:
    """A database with its nodes, and what was measured there, round by round."""

    dsn: str
    nodes: tuple[Node, ...]
    loads: list[Load] = field(default_factory=list)

    @classmethod
    def of(cls, dsn: str, count: int) -> "_Side":
        """With a node for each connection, and one for what is held or drained."""
        create_queue(dsn)
        maps.define(dsn, flows.step("end", "each"))
        return cls(dsn, tuple(register(dsn, number) for number in range(count + 1)))


def held(
    ctx: typer.Context,
    *,
    count: Annotated[int, typer.Option("--connections", help="Connections at once", min=1)] = 8,
    items: Annotated[int, typer.Option(help="Items of a map", min=2, max=100_000)] = 10_000,
    backlog: Annotated[int, typer.Option(help="Items at the start of a turn", min=1)] = 40_000,
    stays_open: Annotated[
        float, typer.Option("--open", help="Seconds that a settlement stays open", min=0)
    ] = 60,
    seconds: Seconds = 5,
    rounds: Rounds = 3,
) -> Answer:
    """Items/s beside a settlement of their map that stays open over those without it.

    All other items of the map end meanwhile, those after the first seconds outside the clock. Then
    the settlement commits: how many milliseconds later is the step after the map spawned? A worker
    that settles steps sweeps every 50 ms beside all of it.
    """
    run = Run.of(ctx)
    with databases(run.dsn, 2) as dsns:
        alone, beside = (_Side.of(dsn, count) for dsn in dsns)
        late: list[float] = []
        seen = maps.Seen()
        for number in range(rounds):
            for side in (alone, beside):
                with psycopg.connect(side.dsn, autocommit=True) as connection:
                    maps.submit(connection, items, max(1, backlog // items))
                calm_down(side.dsn)
            alone.loads.append(_rate(alone, count, seconds))
            _drain(alone)
            with maps.looking(beside.dsn, seen), _settled_in_an_open_transaction(beside) as one:
                beside.loads.append(_rate(beside, count, seconds))
                _drain(beside)
                late.append(one.commit_after(stays_open))
            _drain(beside)
            run.tell(f"round {number + 1}/{rounds}: released {late[-1]:,.0f} ms after the commit")
        facts = machine(beside.dsn)
    figures = (
        rate_against("items beside an open settlement / alone", beside.loads, alone.loads, at_least(0.9)),
        Figure.against(
            f"release after its commit / {RELEASE_MS:,} ms",
            "ms",
            values=late,
            bases=[float(RELEASE_MS)] * rounds,
            aim=at_most(1),
        ),
        Figure("waits for a transaction", "seen", Spread.of([float(seen.lock_waits)])),
    )
    compared = f"maps of {items:,}, {count} connections, open for {stays_open:g} s"
    return Answer("held", compared, figures, ctx.params, facts)


@dataclass
class _Open:
    """A transaction that has completed an item and is open.

    Attributes:
        since: When it completed it, as `time.monotonic` says.
    """

    holder: psycopg.Connection
    run_id: UUID
    since: float
    dsn: str

    def commit_after(self, seconds: float) -> float:
        """Commit when it has been open for so long; ms until the step after the map is spawned.

        Raises: TimeoutError when it is not.
        """
        time.sleep(max(0.0, self.since + seconds - time.monotonic()))
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            early = connection.execute(_AFTER, [None, self.run_id]).fetchall()
            assert not early, "the step after the map was spawned before its last item had ended"
            [(before,)] = connection.execute(_NOW).fetchall()
            self.holder.commit()
            deadline = time.monotonic() + _LONGEST
            while time.monotonic() < deadline:
                found = connection.execute(_AFTER, [before, self.run_id]).fetchone()
                if found is not None:
                    return float(found[0])
                time.sleep(0.002)
        raise TimeoutError("the step after the map is not spawned")


@contextmanager
def _settled_in_an_open_transaction(side: _Side) -> Iterator[_Open]:
    """Claim the first item of the oldest map, and complete it without a commit."""
    node = side.nodes[-1]
    with psycopg.connect(side.dsn) as holder:
        [(lease, token, _)] = holder.execute(CLAIM, [QUEUE, node.node_id, node.epoch, 1]).fetchall()
        [(run_id,)] = holder.execute(_RUN_OF, [lease]).fetchall()
        holder.commit()
        holder.execute(COMPLETE, [lease, token])
        yield _Open(holder, run_id, time.monotonic(), side.dsn)


def _rate(side: _Side, count: int, seconds: float) -> Load:
    return drive(SettleAndClaim(side.dsn, side.nodes[:count], 1), count, seconds)


def _drain(side: _Side) -> None:
    """Work off all that is left in the queue, sweeping as a worker does."""
    node = side.nodes[0]
    claimed: list[Held] = []
    with psycopg.connect(side.dsn, autocommit=True) as connection:
        while True:
            claimed = settle_and_claim(connection, node, claimed, _DRAINED)
            if not claimed and not maps.sweep(connection):
                return
