"""How long do the planner's solvers take for a large fleet?"""

from __future__ import annotations

import importlib.metadata
import time
from typing import Annotated

import typer

from benchmarks.core.report import Answer, Figure
from benchmarks.core.run import Run
from benchmarks.core.server import host
from benchmarks.core.spread import Spread
from hwqueue.planner.condense import solve_condensed
from hwqueue.planner.flow import by_node, chosen_alone, contested, offers_of, plan_leases, total_cost
from hwqueue.planner.gangs import plan_gangs
from hwqueue.planner.model import WHOLE_GPU
from lab.planner.made_up import Fleet, made_gangs, made_leases

_EXACT = 1e-3  # of all devices, as a round of the planner has it
_LIMIT = 600.0  # seconds
_GANG_LIMIT = 1.0  # seconds, as a round has it


def solvers(
    ctx: typer.Context,
    *,
    nodes: Annotated[int, typer.Option(help="Nodes of 8 GPUs", min=1)] = 10_000,
    kinds: Annotated[list[int], typer.Option(help="Kinds of nodes; may be repeated")] = [
        10,
        100,
        500,
    ],
    classes: Annotated[int, typer.Option(help="Placement classes that wait", min=1)] = 1000,
    pending: Annotated[list[int], typer.Option(help="Leases that wait; may be repeated")] = [
        60_000,
        1_000_000,
    ],
    gangs: Annotated[int, typer.Option(help="Gangs that wait", min=1)] = 200,
    racks: Annotated[list[int], typer.Option(help="Racks of 40 nodes; may be repeated")] = [
        250,
        60,
        30,
    ],
    leases: Annotated[int, typer.Option(help="Leases of a short queue", min=1)] = 2000,
    kinds_of_leases: Annotated[int, typer.Option(help="Classes of a short queue", min=1)] = 100,
    places: Annotated[int, typer.Option(help="Nodes with room for leases of a short queue", min=1)] = 200,
    seeds: Annotated[list[int], typer.Option(help="A fleet for each; may be repeated")] = [
        1,
        2,
        3,
    ],
) -> Answer:
    """Seconds that the planner's solvers take; no database is read.

    The fleet is made up: 70 % of the GPUs are in use, and each class suits 1 to 100 % of the kinds.
    Gangs have 2 to 32 members of 1 to 8 GPUs, each gang in one rack.
    """
    run = Run.of(ctx)
    figures = []
    for kind_count in kinds:
        for lease_count in pending:
            fleet = Fleet(nodes=nodes, kinds=kind_count, classes=classes, pending=lease_count, used=0.7)
            figures.append(_prices(run, fleet, seeds))
    figures += [_gangs(run, gangs, count, seeds) for count in racks]
    figures.append(_leases(run, leases, (kinds_of_leases, places), seeds))
    compared = f"{nodes:,} nodes, {classes:,} classes"
    facts = {**host(), "ortools": importlib.metadata.version("ortools")}
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


def _gangs(run: Run, count: int, racks: int, seeds: list[int]) -> Figure:
    """Places for gangs, and how much more is placed than by best fit alone."""
    name = f"gangs: {count:,}, {racks:,} racks"
    took = []
    more: dict[str, list[float]] = {"GPUs": [], "gain %": [], "optimal %": []}
    for seed in seeds:
        gangs, places = made_gangs(count, racks, seed)
        alone = plan_gangs(gangs, places, seconds=0)
        began = time.perf_counter()
        plan = plan_gangs(gangs, places, seconds=_GANG_LIMIT)
        took.append(time.perf_counter() - began)
        more["GPUs"].append(plan.devices / WHOLE_GPU)
        more["gain %"].append(100 * (plan.devices / max(1, alone.devices) - 1))
        more["optimal %"].append(100.0 * plan.is_optimal)
        run.tell(f"{name}, seed {seed}: {took[-1]:.3f} s")
    spreads = {key: Spread.of(values) for key, values in more.items()}
    return Figure(name, "s", Spread.of(took), more=spreads)


def _leases(run: Run, count: int, size: tuple[int, int], seeds: list[int]) -> Figure:
    """Nodes for single leases, and what nodes lose that choose by themselves."""
    classes, nodes = size
    name = f"leases: {count:,} of {classes:,} classes, {nodes:,} nodes"
    took = []
    more: dict[str, list[float]] = {"flow s": [], "pairs": [], "saved %": [], "reserved %": []}
    for seed in seeds:
        wanted = made_leases(classes, nodes, count, seed)
        began = time.perf_counter()
        plan = plan_leases(wanted)
        more["flow s"].append(time.perf_counter() - began)
        more["pairs"].append(sum(len(each.options) for each in wanted))
        proposed = contested(wanted, plan)
        took.append(time.perf_counter() - began)
        options = by_node(wanted)
        alone = total_cost(wanted, options, chosen_alone(wanted, offers_of(wanted)))
        more["saved %"].append(100 * (1 - total_cost(wanted, options, plan) / max(1, alone)))
        more["reserved %"].append(100 * len(proposed) / count)
        run.tell(f"{name}, seed {seed}: {took[-1]:.3f} s")
    spreads = {key: Spread.of(values) for key, values in more.items()}
    return Figure(name, "s", Spread.of(took), more=spreads)
