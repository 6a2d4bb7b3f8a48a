"""Does a claim pay for the number of nodes, or of kinds of nodes?"""

from typing import Annotated

import typer

from benchmarks.core.options import Claims, Rounds
from benchmarks.core.report import Answer, at_most
from benchmarks.core.run import Run
from benchmarks.core.scene import Scene
from benchmarks.core.sweep import Case, needed, sweep

NODES_AIM = at_most(1.2)

Counts = Annotated[list[int], typer.Option(help="How many; the first is the base", min=1)]


def nodes(
    ctx: typer.Context,
    *,
    counts: Counts = [1, 100, 10_000],
    claims: Claims = 500,
    rounds: Rounds = 7,
) -> Answer:
    """Claim p50 with many registered nodes, all alike, over p50 with one."""
    cases = [
        Case(f"{count:,} nodes", Scene(needed(claims, rounds), others=[{}] * (count - 1)), NODES_AIM)
        for count in counts
    ]
    figures, machine = sweep(Run.of(ctx), cases, claims, rounds)
    return Answer("nodes", f"claim p50 / with {counts[0]:,} nodes", figures, ctx.params, machine)


def profiles(
    ctx: typer.Context,
    *,
    counts: Counts = [1, 100, 1000],
    claims: Claims = 500,
    rounds: Rounds = 7,
) -> Answer:
    """Claim p50 with many kinds of nodes, each of which has claimed, over p50 with one."""
    waiting = needed(claims, rounds) + max(counts)
    cases = [
        Case(
            f"{count:,} profiles",
            Scene(
                waiting,
                others=[{"labels": {"kind": number}} for number in range(1, count)],
                others_claim=True,
            ),
        )
        for count in counts
    ]
    figures, machine = sweep(Run.of(ctx), cases, claims, rounds)
    compared = f"claim p50 / with {counts[0]:,} kinds of nodes"
    return Answer("profiles", compared, figures, ctx.params, machine)
