"""Does a claim pay for what waits?

Three backlogs: leases that the node may never run, leases that it may run but has no room for now,
and leases that it may run. Claims of the same leases are timed with and without.
"""

from typing import Annotated

import typer

from benchmarks.core.fill import kind
from benchmarks.core.options import Claims, Rounds
from benchmarks.core.report import Answer, at_most
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
    classes: Annotated[
        list[int], typer.Option(help="Classes it is spread over; may be repeated", min=1)
    ] = [1, 10, 1000],  # noqa: B006
    claims: Claims = 500,
    rounds: Rounds = 7,
) -> Answer:
    """Claim p50 with a backlog that the node may run but has no room for over p50 with none."""
    bare = Scene(needed(claims, rounds), [_SMALL], node=_BUSY_NODE, held=_LONG)
    cases = [Case("none", bare)]
    for count in classes:
        large = [
            kind(placement={"resources": {"cpu_milli": 4001 + number}}) for number in range(count)
        ]
        loaded = Scene(bare.waiting, [_SMALL], backlog, large, _BUSY_NODE, _LONG)
        cases.append(Case(f"{backlog:,} blocked in {count:,} classes", loaded, BLOCKED_AIM))
    figures, machine = sweep(Run.of(ctx), cases, claims, rounds)
    return Answer("blocked", "claim p50 / with no such backlog", figures, ctx.params, machine)


def eligible(
    ctx: typer.Context,
    *,
    sizes: Annotated[
        list[int], typer.Option(help="Backlogs, the first is the base; may be repeated", min=1)
    ] = [10_000, 100_000, 1_000_000, 10_000_000],  # noqa: B006
    claims: Claims = 500,
    rounds: Rounds = 7,
) -> Answer:
    """Claim p50 with much to claim over p50 with little."""
    cases = [Case(f"{size:,} eligible", Scene(size), ELIGIBLE_AIMS.get(size)) for size in sizes]
    figures, machine = sweep(Run.of(ctx), cases, claims, rounds)
    compared = f"claim p50 / with {sizes[0]:,} eligible"
    return Answer("eligible", compared, figures, ctx.params, machine)
