"""What does a claim pay for classes that cannot run yet?

Older leases that must be with a lease which is due in an hour; new groups whose terms cannot come
into force, since a session on the server has written something and idles. Claims of plain leases
behind them are timed, and their transaction ids counted.
"""

from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from statistics import median
from typing import Annotated
from uuid import UUID

import psycopg
import typer

from benchmarks.core.claimer import Claimer
from benchmarks.core.fill import fill, kind, spawn
from benchmarks.core.holders import idle_writer
from benchmarks.core.node import register
from benchmarks.core.options import Claims, Rounds
from benchmarks.core.queue import create_queue
from benchmarks.core.report import Answer, Figure, at_most
from benchmarks.core.run import Run
from benchmarks.core.server import calm_down, databases, machine, put_in_force
from benchmarks.core.spread import Spread
from benchmarks.core.sweep import needed

AIM = at_most(1.5)
_HOUR = 3600
_COUNTED = 20  # claims whose transaction ids are counted

Counts = Annotated[list[int], typer.Option(help="Leases in the way; may be repeated", min=1)]


def dependents(
    ctx: typer.Context,
    *,
    dependents: Counts = [10, 100, 1000],
    groups: Counts = [10, 300, 1000],
    claims: Claims = 100,
    rounds: Rounds = 5,
) -> Answer:
    """Claim p50 behind leases that cannot run yet over p50 with none, and transaction ids."""
    run = Run.of(ctx)
    waiting = [0, *dependents]
    names = ["none", *(f"{count:,} that wait for another lease" for count in dependents)]
    with ExitStack() as stack:
        dsns = stack.enter_context(databases(run.dsn, len(waiting)))
        cases = [_Case(*case) for case in zip(names, dsns, waiting, [0] * len(waiting), strict=True)]
        figures = _measured(run, cases, claims, rounds)
        told = machine(dsns[0])
    names = ["beside an idle writer: none"]
    names += [f"beside an idle writer: {count:,} new groups" for count in groups]
    with ExitStack() as stack:
        dsns = stack.enter_context(databases(run.dsn, len(names)))
        stack.enter_context(idle_writer(dsns[0]))
        cases = [_Case(*case) for case in zip(names, dsns, [0] * len(names), [0, *groups], strict=True)]
        figures += _measured(run, cases, claims, rounds)
    return Answer("dependents", "claim p50 / with none in the way", tuple(figures), ctx.params, told)


@dataclass(frozen=True)
class _Case:
    name: str
    dsn: str
    dependents: int
    groups: int


def _measured(run: Run, cases: Sequence[_Case], claims: int, rounds: int) -> list[Figure]:
    """The figures of all cases, against the first; claims go round them one by one."""
    with ExitStack() as stack:
        claimers = []
        for case in cases:
            run.tell(f"preparing: {case.name}")
            prepared = _prepare(run, case, needed(claims, rounds))
            claimers.append(stack.enter_context(closing(prepared)))
        by_round = []
        for number in range(rounds + 1):
            times = [[claimer.timed_claim() for claimer in claimers] for _ in range(claims)]
            if number > 0:  # the first warms caches and plans
                by_round.append([median(of_one) for of_one in zip(*times, strict=True)])
        figures = []
        for number, (case, claimer) in enumerate(zip(cases, claimers, strict=True)):
            values = [of_all[number] for of_all in by_round]
            more = {"xids": Spread.of([_xids(claimer) for _ in range(_COUNTED)])}
            if number == 0:
                figures.append(Figure(case.name, "p50 ms", Spread.of(values), more=more))
            else:
                bases = [of_all[0] for of_all in by_round]
                figures.append(
                    Figure.against(case.name, "p50 ms", values=values, bases=bases, aim=AIM, more=more)
                )
        return figures


def _prepare(run: Run, case: _Case, plain: int) -> Claimer:
    """A database with what is in the way, then plain leases, and a node that has met them."""
    dsn = case.dsn
    create_queue(dsn)
    claimer = Claimer(dsn, register(dsn, 0, rack=1))
    with psycopg.connect(dsn, autocommit=True) as connection:
        later = spawn(connection, [kind(delay=_HOUR)] * case.dependents)
        spawn(connection, [_with(lease) for lease in later])
        spawn(connection, [_apart(number) for number in range(case.groups)])
        if case.groups:  # as far as the idle writer lets them come
            for _ in range(case.groups // 100 + 3):
                connection.execute("select hwqueue.reap()")
        else:
            put_in_force(dsn)
    fill(run, dsn, [kind()], plain + 4 * _COUNTED)
    calm_down(dsn)
    for _ in range(_COUNTED):
        claimer.timed_claim()
    return claimer


def _with(lease: UUID) -> dict[str, object]:
    """A lease that must be where another one runs or has run."""
    return dict(kind(placement={"require": [{"lease": str(lease), "domain": "rack"}]}))


def _apart(number: int) -> dict[str, object]:
    """A lease of a group of its own whose members keep away from each other."""
    labels = {"group": str(number)}
    apart = {"leases": {"labels": labels}, "domain": "rack", "away": True}
    return dict(kind(placement={"require": [apart]}, labels=labels))


def _xids(claimer: Claimer) -> float:
    """How many transaction ids went by in a claim; other sessions may draw some as well."""
    before = _next_xid(claimer.connection)
    held = claimer.take()
    drawn = _next_xid(claimer.connection) - before
    claimer.settle(*held)
    return drawn


def _next_xid(connection: psycopg.Connection) -> int:
    row = connection.execute("select pg_snapshot_xmax(pg_current_snapshot())::text::bigint").fetchone()
    assert row is not None
    return int(row[0])
