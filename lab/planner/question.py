"""How long do the planner's solvers take for a large fleet?"""

from __future__ import annotations

import time
from typing import Annotated

import ortools
import typer

from benchmarks.core.report import Answer, Figure
from benchmarks.core.run import Run
from benchmarks.core.server import host
from benchmarks.core.spread import Spread
from hwqueue.planner.condense import solve_condensed
from lab.planner.made_up import Fleet

_EXACT = 1e-3  # of all devices, as a round of the planner has it
_LIMIT = 600.0  # seconds


def solvers(
    ctx: typer.Context,
    *,
    nodes: Annotated[int, typer.Option(help="Nodes of 8 GPUs", min=1)] = 10_000,
    kinds: Annotated[list[int], typer.Option(help="Kinds of nodes; may be repeated")] = [  # noqa: B006
        10,
        100,
        500,
    ],
    classes: Annotated[int, typer.Option(help="Placement classes that wait", min=1)] = 1000,
    pending: Annotated[list[int], typer.Option(help="Leases that wait; may be repeated")] = [  # noqa: B006
        60_000,
        1_000_000,
    ],
    seeds: Annotated[list[int], typer.Option(help="A fleet for each; may be repeated")] = [  # noqa: B006
        1,
        2,
        3,
    ],
) -> Answer:
    """Seconds that the planner's solvers take; no database is read.

    The fleet is made up: 70 % of the GPUs are in use, and each class suits 1 to 100 % of the kinds.
    """
    run = Run.of(ctx)
    figures = []
    for kind_count in kinds:
        for lease_count in pending:
            fleet = Fleet(
                nodes=nodes, kinds=kind_count, classes=classes, pending=lease_count, used=0.7
            )
            figures.append(_prices(run, fleet, seeds))
    compared = f"{nodes:,} nodes, {classes:,} classes"
    facts = {**host(), "ortools": ortools.__version__}
    return Answer("solvers", compared, tuple(figures), ctx.params, facts)


def _prices(run: Run, fleet: Fleet, seeds: list[int]) -> Figure:
    """The configuration program, built and solved."""
    name = f"prices: {fleet.kinds:,} kinds, {fleet.pending:,} leases"
    took, gaps = [], []
    for seed in seeds:
        pools, demands = fleet.made(seed)
        began = time.perf_counter()
        found = solve_condensed(pools, demands, exact=_EXACT, seconds=_LIMIT)
        took.append(time.perf_counter() - began)
        gaps.append(100 * (found.bound - found.allocated) / max(1.0, found.bound))
        run.tell(f"{name}, seed {seed}: {took[-1]:.3f} s")
    return Figure(name, "s", Spread.of(took), more={"open %": Spread.of(gaps)})
