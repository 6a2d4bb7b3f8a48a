"""What does a claim pay for what leases ask about other leases?"""

from typing import Annotated, Any

import typer

from benchmarks.core.fill import Lease, kind
from benchmarks.core.node import LIVES_LONG
from benchmarks.core.options import Claims, Rounds
from benchmarks.core.report import Answer, at_most
from benchmarks.core.run import Run
from benchmarks.core.scene import Scene
from benchmarks.core.sweep import Case, needed, sweep

AIM = at_most(3)

Terms = Annotated[list[int], typer.Option(help="Groups that keep away from their own", min=1)]
Domains = Annotated[list[int], typer.Option(help="Racks, a node in each", min=1)]


def others(
    ctx: typer.Context,
    *,
    terms: Terms = [1, 100, 10_000],
    domains: Domains = [1, 100, 10_000],
    claims: Claims = 300,
    rounds: Rounds = 5,
) -> Answer:
    """Claim p50 of leases that ask about other leases over p50 of plain ones."""
    waiting = needed(claims, rounds)
    cases = [Case("plain", Scene(waiting, node={"rack": 1}))]
    cases += [
        Case(
            f"away from its own in the rack, {count:,} groups",
            Scene(max(waiting, 2 * count), [_away(n) for n in range(count)], node={"rack": 1}),
            AIM,
        )
        for count in terms
    ]
    cases += [
        Case(f"{name}, {count:,} racks", _spread(waiting, count, here=here, **limit), AIM)
        for name, here, limit in (
            ("max_per_domain", False, {"max_per_domain": 2}),
            ("max_skew, none here", False, {"max_skew": 1}),
            ("max_skew, one everywhere", True, {"max_skew": 1}),
        )
        for count in domains
    ]
    figures, machine = sweep(Run.of(ctx), cases, claims, rounds)
    return Answer("others", "claim p50 / of plain leases", figures, ctx.params, machine)


def _away(number: int) -> Lease:
    """A lease of one of many groups whose members keep away from each other."""
    labels = {"group": str(number)}
    apart = {"leases": {"labels": labels}, "domain": "rack", "away": True}
    return kind(placement={"require": [apart]}, labels=labels)


def _spread(waiting: int, racks: int, *, here: bool, **limit: Any) -> Scene:
    """Leases that spread over racks; one runs in each, in the claiming node's own if `here`."""
    labels = {"group": "all"}
    spread = {"domain": "rack", "select": {"labels": labels}, **limit}
    return Scene(
        waiting + racks,
        [kind(placement={"spread": [spread]}, labels=labels)],
        node={"rack": 1},
        others=[{"rack": rack, **LIVES_LONG} for rack in range(1 if here else 2, racks + 1)],
        others_claim=True,
    )
