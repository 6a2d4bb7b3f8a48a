"""Does a claim pay for what leases carry, or for their priorities?"""

from typing import Annotated

import typer

from benchmarks.core.fill import kind
from benchmarks.core.options import Claims, Rounds
from benchmarks.core.payload import payload
from benchmarks.core.report import Answer
from benchmarks.core.run import Run
from benchmarks.core.scene import Scene
from benchmarks.core.sweep import Case, needed, sweep

PRIORITIES = 10


def payloads(
    ctx: typer.Context,
    *,
    sizes: Annotated[list[int], typer.Option(help="Bytes of params, the first is the base", min=20)] = [
        100,
        10_000,
        100_000,
    ],
    claims: Claims = 500,
    rounds: Rounds = 7,
) -> Answer:
    """Claim p50 with large params over p50 with small ones; the client receives them."""
    waiting = needed(claims, rounds)
    cases = [Case(f"{size:,} bytes", Scene(waiting, [kind(payload(size))])) for size in sizes]
    figures, machine = sweep(Run.of(ctx), cases, claims, rounds)
    compared = f"claim p50 / with {sizes[0]:,} bytes of params"
    return Answer("payloads", compared, figures, ctx.params, machine)


def priorities(
    ctx: typer.Context,
    *,
    waiting: Annotated[int, typer.Option(help="Leases", min=1)] = 100_000,
    claims: Claims = 500,
    rounds: Rounds = 7,
) -> Answer:
    """Claim p50 with 10 priorities mixed, and with ageing, over p50 with one priority."""
    mixed = [kind(priority=number) for number in range(PRIORITIES)]
    ageing = {"ageing_step": 60}
    cases = [
        Case("1 priority", Scene(waiting)),
        Case(f"{PRIORITIES} priorities", Scene(waiting, mixed)),
        Case("1 priority, ageing", Scene(waiting, policy=ageing)),
        Case(f"{PRIORITIES} priorities, ageing", Scene(waiting, mixed, policy=ageing)),
    ]
    figures, machine = sweep(Run.of(ctx), cases, claims, rounds)
    return Answer("priorities", "claim p50 / with 1 priority", figures, ctx.params, machine)
