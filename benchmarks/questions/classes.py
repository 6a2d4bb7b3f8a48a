"""Does a claim pay for the number of classes: those that it chooses from, those that exist?"""

from enum import StrEnum
from typing import Annotated, Any
from uuid import UUID

import typer

from benchmarks.core.fill import Lease, kind
from benchmarks.core.options import Claims, Rounds
from benchmarks.core.report import Answer, Figure, at_most
from benchmarks.core.run import Run
from benchmarks.core.scene import Scene
from benchmarks.core.sweep import Case, sweep

ACTIVE_AIMS = {100: at_most(1.3), 1000: at_most(2)}
EXISTING_AIM = at_most(1.3)
ELIGIBLE_OF_EXISTING = 10

Waiting = Annotated[int, typer.Option(help="Leases that the node may run", min=1)]


class Variant(StrEnum):
    """What tells the classes apart."""

    SAME = "same"
    PREFERENCES = "preferences"
    GPU = "gpu"


def active(
    ctx: typer.Context,
    *,
    classes: Annotated[list[int], typer.Option(help="Eligible classes, the first is the base", min=1)] = [
        1,
        10,
        100,
        1000,
    ],
    variant: Annotated[
        list[Variant],
        typer.Option(help="same: all score alike; preferences: all differently; gpu: they need devices"),
    ] = list(Variant),
    waiting: Waiting = 200_000,
    claims: Claims = 500,
    rounds: Rounds = 7,
) -> Answer:
    """Claim p50 with many eligible classes that have leases over p50 with one."""
    figures: list[Figure] = []
    for which in variant:
        cases = [
            Case(
                f"{which}: {count:,} classes",
                Scene(waiting, [_active(which, number) for number in range(count)], node=_node(which)),
                ACTIVE_AIMS.get(count),
            )
            for count in classes
        ]
        found, machine = sweep(Run.of(ctx), cases, claims, rounds)
        figures += found
    compared = f"claim p50 / with {classes[0]:,} classes to choose from"
    return Answer("active", compared, tuple(figures), ctx.params, machine)


def existing(
    ctx: typer.Context,
    *,
    classes: Annotated[list[int], typer.Option(help="Existing classes, the first is the base", min=10)] = [
        10,
        1000,
        10_000,
        100_000,
    ],
    waiting: Waiting = 10_000,
    claims: Claims = 500,
    rounds: Rounds = 7,
) -> Answer:
    """Claim p50 with many classes of which the node may run 10 over p50 with those 10."""
    wanted = [
        kind(affinity_tags={"pool": "cpu"}, labels={str(number): "n"})
        for number in range(ELIGIBLE_OF_EXISTING)
    ]
    node = {"labels": {"pool": "cpu"}}
    cases = []
    for count in classes:
        others = count - ELIGIBLE_OF_EXISTING
        unwanted = [kind(affinity_tags={"pool": "gpu", "n": number}) for number in range(others)]
        scene = Scene(waiting, wanted, others, unwanted, node)
        cases.append(Case(f"{count:,} exist", scene, EXISTING_AIM))
    figures, machine = sweep(Run.of(ctx), cases, claims, rounds)
    compared = f"claim p50 with {ELIGIBLE_OF_EXISTING} eligible classes / with {classes[0]:,} existing"
    return Answer("existing", compared, figures, ctx.params, machine)


def _active(variant: Variant, number: int) -> Lease:
    """The lease of class 0, 1, ...; their scores differ nearly all where they are to."""
    match variant:
        case Variant.SAME:
            return kind(labels={str(number): "n"})
        case Variant.PREFERENCES:
            matched, unmatched = 1 + number % 97, 100 - number // 97
            prefer = [
                {"weight": matched, "when": {"tags": {"zone": "a"}}},
                {"weight": unmatched, "when": {"tags": {"zone": "b"}}},
            ]
            return kind(placement={"prefer": prefer}, labels={str(number): "n"})
        case Variant.GPU:
            needs = {"gpu_milli": 1 + number % 900, "cpu_milli": 1 + number}
            return kind(placement={"resources": needs})


def _node(variant: Variant) -> dict[str, Any]:
    if variant is Variant.GPU:
        gpus = [
            {"resource_id": str(UUID(int=number)), "model": "G", "memory_mib": 81_920}
            for number in range(1, 9)
        ]
        return {"capacity": {"cpu_milli": 128_000}, "gpus": gpus}
    return {"labels": {"zone": "a"}}
