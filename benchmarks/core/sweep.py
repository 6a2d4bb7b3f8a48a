"""Claim latency in several scenes at once, told against the first of them.

Every scene has a database of its own on one server. Claims go round the databases one by one, so
that all see the machine in the same mood; a figure is the ratio of the medians of a round.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from dataclasses import dataclass
from statistics import median

from benchmarks.core.claimer import Claimer
from benchmarks.core.report import Aim, Figure
from benchmarks.core.run import Run
from benchmarks.core.scene import Scene
from benchmarks.core.server import databases, machine
from benchmarks.core.spread import Spread, percentile


@dataclass(frozen=True)
class Case:
    """A scene under the name that its figure gets."""

    name: str
    scene: Scene
    aim: Aim | None = None


@dataclass(frozen=True)
class Claims:
    """Claims of one scene in one round, in milliseconds."""

    p50: float
    p99: float


def sweep(
    run: Run,
    cases: Sequence[Case],
    claims: int,
    rounds: int,
    beside: Callable[[Sequence[str]], AbstractContextManager[None]] = lambda _: nullcontext(),
) -> tuple[tuple[Figure, ...], dict[str, str]]:
    """Measure the claim p50 of each case over that of the first; and on what machine.

    `beside` goes on while claims are made, in the prepared databases, one for each case.

    Raises: RanDryError when a scene holds fewer leases than are claimed.
    """
    with ExitStack() as stack:
        dsns = stack.enter_context(databases(run.dsn, len(cases)))
        claimers: list[Claimer] = []
        for case, dsn in zip(cases, dsns, strict=True):
            run.tell(f"preparing: {case.name}")
            claimers.append(stack.enter_context(closing(case.scene.prepare(run, dsn))))
        stack.enter_context(beside(dsns))
        _round(claimers, claims)  # warms caches and plans
        by_round = [_round(claimers, claims) for _ in run.track(range(rounds), f"{rounds} rounds of claims")]
        figures = tuple(
            _figure(case, [of_all[number] for of_all in by_round], [of_all[0] for of_all in by_round])
            for number, case in enumerate(cases)
        )
        return figures, machine(dsns[0])


def needed(claims: int, rounds: int) -> int:
    """How many leases a scene must hold for them: twice those that are claimed."""
    return 2 * claims * (rounds + 1)


def _round(claimers: Sequence[Claimer], claims: int) -> list[Claims]:
    times = [[claimer.timed_claim() for claimer in claimers] for _ in range(claims)]
    return [Claims(median(of_one), percentile(of_one, 99)) for of_one in zip(*times, strict=True)]


def _figure(case: Case, rounds: Sequence[Claims], bases: Sequence[Claims]) -> Figure:
    values = [claims.p50 for claims in rounds]
    p99 = {"p99 ms": Spread.of([claims.p99 for claims in rounds])}
    if rounds == bases:
        return Figure(case.name, "p50 ms", Spread.of(values), more=p99)
    base_values = [claims.p50 for claims in bases]
    return Figure.against(case.name, "p50 ms", values=values, bases=base_values, aim=case.aim, more=p99)
