"""Does a claim pay for what waits?

Three backlogs: leases that the node may never run, leases that it may run but has no room for now,
and leases that it may run. Claims of the same leases are timed with and without.
"""

from dataclasses import replace
from enum import StrEnum
from typing import Annotated

import typer

from benchmarks.core.fill import Lease, kind
from benchmarks.core.node import LIVES_LONG
from benchmarks.core.options import Claims, Rounds
from benchmarks.core.report import Answer, Figure, at_most
from benchmarks.core.run import Run
from benchmarks.core.scene import Scene
from benchmarks.core.sweep import Case, needed, sweep

Backlog = Annotated[int, typer.Option(help="Leases in the way", min=1)]

INELIGIBLE_AIM = at_most(1.2)
BLOCKED_AIM = at_most(1.5)
ELIGIBLE_AIMS = {1_000_000: at_most(1.2), 10_000_000: at_most(1.5)}

_CPU_NODE = {"labels": {"pool": "cpu"}}
# A lease that runs all the time takes half of it; the other half is too little for the backlog.
_BUSY_NODE = {"capacity": {"cpu_milli": 8000}}
_LONG = kind(placement={"resources": {"cpu_milli": 4000}})
_SMALL = kind(placement={"resources": {"cpu_milli": 1}})
# Leases of this kind run all the time where the backlog must not be with them.
_DISLIKED = kind(labels={"app": "db"})


class By(StrEnum):
    """What keeps the node from a backlog that it may run."""

    CAPACITY = "capacity"
    AWAY = "away"
    PATIENCE = "patience"


def ineligible(
    ctx: typer.Context,
    *,
    backlog: Backlog = 1_000_000,
    claims: Claims = 500,
    rounds: Rounds = 7,
) -> Answer:
    """Claim p50 with a backlog in 10 classes that the node may not run over p50 with none."""
    wanted = kind(affinity_tags={"pool": "cpu"})
    unwanted = [kind(affinity_tags={"pool": "gpu", "kind": number}) for number in range(10)]
    bare = Scene(needed(claims, rounds), [wanted], node=_CPU_NODE)
    loaded = Scene(bare.waiting, [wanted], backlog, unwanted, _CPU_NODE)
    cases = [Case("none", bare), Case(f"{backlog:,} ineligible", loaded, INELIGIBLE_AIM)]
    figures, machine = sweep(Run.of(ctx), cases, claims, rounds)
    return Answer("ineligible", "claim p50 / with no such backlog", figures, ctx.params, machine)


def blocked(
    ctx: typer.Context,
    *,
    backlog: Backlog = 1_000_000,
    classes: Annotated[list[int], typer.Option(help="Classes it is spread over; may be repeated", min=1)] = [
        1,
        10,
        1000,
    ],
    by: Annotated[
        list[By],
        typer.Option(
            help="capacity: they do not fit; away: they keep away from what runs there;"
            " patience: they wait for a better node"
        ),
    ] = list(By),
    claims: Claims = 500,
    rounds: Rounds = 7,
) -> Answer:
    """Claim p50 with a backlog that the node may not run for now over p50 with none."""
    figures: list[Figure] = []
    for why in by:
        bare = _bare(why, needed(claims, rounds))
        cases = [Case(f"{why}: none", bare)]
        cases += [
            Case(
                f"{why}: {backlog:,} blocked in {count:,} classes",
                replace(bare, ahead=backlog, ahead_kinds=[_blocked(why, n) for n in range(count)]),
                BLOCKED_AIM,
            )
            for count in classes
        ]
        found, machine = sweep(Run.of(ctx), cases, claims, rounds)
        figures += found
    compared = "claim p50 / with no such backlog"
    return Answer("blocked", compared, tuple(figures), ctx.params, machine)


def _bare(why: By, waiting: int) -> Scene:
    match why:
        case By.CAPACITY:
            return Scene(waiting, [_SMALL], node=_BUSY_NODE, held=_LONG)
        case By.AWAY:
            return Scene(waiting, node={"rack": 1}, held=_DISLIKED)
        case By.PATIENCE:
            better = {"labels": {"zone": "b"}, **LIVES_LONG}
            return Scene(waiting, node={"labels": {"zone": "a"}}, others=[better])


def _blocked(why: By, number: int) -> Lease:
    """The lease of class 0, 1, ... of the backlog."""
    match why:
        case By.CAPACITY:
            return kind(placement={"resources": {"cpu_milli": 4001 + number}})
        case By.AWAY:
            away = {"leases": {"labels": {"app": "db"}}, "domain": "rack", "away": True}
            return kind(placement={"require": [away]}, labels={"n": str(number)})
        case By.PATIENCE:
            prefer = [{"weight": 100, "when": {"tags": {"zone": "b"}}}]
            return kind(placement={"prefer": prefer}, labels={"n": str(number)}, patience=86_400)


def eligible(
    ctx: typer.Context,
    *,
    sizes: Annotated[
        list[int], typer.Option(help="Backlogs, the first is the base; may be repeated", min=1)
    ] = [10_000, 100_000, 1_000_000, 10_000_000],
    claims: Claims = 500,
    rounds: Rounds = 7,
) -> Answer:
    """Claim p50 with much to claim over p50 with little."""
    cases = [Case(f"{size:,} eligible", Scene(size), ELIGIBLE_AIMS.get(size)) for size in sizes]
    figures, machine = sweep(Run.of(ctx), cases, claims, rounds)
    compared = f"claim p50 / with {sizes[0]:,} eligible"
    return Answer("eligible", compared, figures, ctx.params, machine)
