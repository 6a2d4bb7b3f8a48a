"""How much of the GPUs any assignment could give away: what a backlog run is measured against.

A configuration linear program: a device is given a pattern, shares that fit on it together, and how
many devices of each kind of node have which pattern is what is sought, in fractions. CPU and memory
are summed over the nodes of a kind. Both only loosen the problem, so nobody can allocate more.

Patterns are made as they are needed (column generation): those that the prices of the last solution
call for. Needs OR-tools.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ortools.linear_solver import pywraplp

from hwqueue.demo.model import WHOLE_GPU, Job, Machine

EXACT_ENOUGH = 1e-5  # of all devices: how far the bound may stay above the program's optimum
NO_GAIN = 1e-9  # of a device: what a new pattern has to bring

Pattern = Mapping[int, int]  # how many shares of each size


@dataclass(frozen=True, slots=True)
class Kind:
    """Nodes that differ in nothing that matters here."""

    gpus: int
    cpu_milli: int
    memory_mib: int
    gpu_model: str | None
    labels: str


@dataclass(frozen=True, slots=True)
class Shape:
    """Jobs that ask for the same; `share` is 0 for whole devices."""

    num_gpu: int
    share: int
    cpu_milli: int
    memory_mib: int
    gpu_models: tuple[str, ...]
    tags: str

    @property
    def gpu_demand(self) -> float:
        """Devices it holds."""
        return self.share / WHOLE_GPU if self.share else self.num_gpu


def bound_percent(machines: Sequence[Machine], jobs: Sequence[Job]) -> float:
    """The GPUs that could be allocated to these jobs at most, in percent; 0 without GPUs."""
    devices = sum(machine.gpus for machine in machines)
    if not devices:
        return 0.0
    return min(100.0, 100 * _Program(machines, jobs).bound(EXACT_ENOUGH * devices) / devices)


class _Program:
    """The program, and the patterns that it knows so far."""

    def __init__(self, machines: Sequence[Machine], jobs: Sequence[Job]) -> None:
        self.solver = pywraplp.Solver.CreateSolver("GLOP")
        self.kinds = Counter(_kind(machine) for machine in machines if machine.gpus)
        an_example = {_kind(machine): machine for machine in machines}
        shapes = Counter(_shape(job) for job in jobs if job.num_gpu)
        a_job = {_shape(job): job for job in jobs}
        self.devices: dict[Kind, Any] = {}
        self.slots: dict[tuple[Kind, int], Any] = {}  # shares placed, less what patterns hold
        self.sizes: dict[Kind, set[int]] = defaultdict(set)
        self.amounts = {kind: self._amounts(kind) for kind in self.kinds}
        for shape, count in shapes.items():
            there = self._at_most(count)
            for kind in self.kinds:
                if _suits(a_job[shape], an_example[kind]):
                    self._place(shape, kind, there)
        self.solver.Objective().SetMaximization()
        for kind, sizes in self.sizes.items():
            for size in sizes:
                self._know(kind, {size: WHOLE_GPU // size})

    def bound(self, tolerance: float) -> float:
        """At most `tolerance` devices above the program's optimum, never below it."""
        best = math.inf
        while True:
            reached = self._solve()
            missing = 0.0
            found = []  # the prices are gone once the program changes
            for kind, row in self.devices.items():
                prices = {size: self.slots[kind, size].dual_value() for size in self.sizes[kind]}
                pattern, worth = _dearest(prices)
                gain = worth - float(row.dual_value())
                # dearer devices make the prices feasible for patterns that are not known yet
                missing += max(0.0, gain) * self.kinds[kind] * kind.gpus
                if gain > NO_GAIN:
                    found.append((kind, pattern))
            best = min(best, reached + missing)
            if missing <= tolerance:
                return best
            for kind, pattern in found:
                self._know(kind, pattern)

    def _solve(self) -> float:
        """The optimum over the patterns that are known.

        Without presolve a solution starts from the last one. On a few programs GLOP gives up
        (abnormal) either way, but not both ways.
        """
        how = pywraplp.MPSolverParameters()
        statuses = []
        for presolve in (how.PRESOLVE_OFF, how.PRESOLVE_ON):
            how.SetIntegerParam(how.PRESOLVE, presolve)
            statuses.append(self.solver.Solve(how))
            if statuses[-1] == pywraplp.Solver.OPTIMAL:
                return float(self.solver.Objective().Value())
        raise RuntimeError(f"the bound was not found: GLOP ended with statuses {statuses}")

    def _at_most(self, limit: float) -> Any:
        return self.solver.Constraint(-self.solver.infinity(), limit)

    def _amounts(self, kind: Kind) -> tuple[Any, Any]:
        """CPU and memory of all nodes of a kind; and its devices."""
        nodes = self.kinds[kind]
        self.devices[kind] = self._at_most(nodes * kind.gpus)
        return self._at_most(nodes * kind.cpu_milli / 1000), self._at_most(
            nodes * kind.memory_mib / 1024
        )

    def _place(self, shape: Shape, kind: Kind, there: Any) -> None:
        """Jobs of a shape on nodes of a kind."""
        placed = self.solver.NumVar(0, self.solver.infinity(), "")
        self.solver.Objective().SetCoefficient(placed, shape.gpu_demand)
        there.SetCoefficient(placed, 1)
        cpu, memory = self.amounts[kind]
        cpu.SetCoefficient(placed, shape.cpu_milli / 1000)
        memory.SetCoefficient(placed, shape.memory_mib / 1024)
        if not shape.share:
            self.devices[kind].SetCoefficient(placed, shape.num_gpu)
            return
        if shape.share not in self.sizes[kind]:
            self.sizes[kind].add(shape.share)
            self.slots[kind, shape.share] = self._at_most(0)
        self.slots[kind, shape.share].SetCoefficient(placed, 1)

    def _know(self, kind: Kind, pattern: Pattern) -> None:
        """Devices of a kind may be given this pattern."""
        used = self.solver.NumVar(0, self.solver.infinity(), "")
        self.devices[kind].SetCoefficient(used, 1)
        for size, count in pattern.items():
            self.slots[kind, size].SetCoefficient(used, -count)


def _dearest(prices: Mapping[int, float]) -> tuple[Pattern, float]:
    """The shares on one device that are worth most together: a knapsack with repetition."""
    unit = math.gcd(WHOLE_GPU, *prices)
    items = [(size // unit, price) for size, price in prices.items() if price > 0]
    worth = [0.0] * (WHOLE_GPU // unit + 1)
    taken = [0] * len(worth)
    for room in range(1, len(worth)):
        worth[room] = worth[room - 1]
        for size, price in items:
            if size <= room and worth[room - size] + price > worth[room]:
                worth[room], taken[room] = worth[room - size] + price, size
    pattern: Counter[int] = Counter()
    room = len(worth) - 1
    while room > 0:
        if taken[room]:
            pattern[taken[room] * unit] += 1
        room -= taken[room] or 1
    return pattern, worth[-1]


def _kind(machine: Machine) -> Kind:
    return Kind(
        machine.gpus,
        machine.cpu_milli,
        machine.memory_mib,
        machine.gpu_model,
        repr(sorted(machine.labels.items())),
    )


def _shape(job: Job) -> Shape:
    return Shape(
        job.num_gpu,
        job.gpu_milli if job.gpu_milli < WHOLE_GPU else 0,
        job.cpu_milli,
        job.memory_mib,
        job.gpu_models,
        repr(sorted(job.tags.items())),
    )


def _suits(job: Job, machine: Machine) -> bool:
    """Whether the machine could run the job when it is idle."""
    return (
        job.num_gpu <= machine.gpus
        and job.cpu_milli <= machine.cpu_milli
        and job.memory_mib <= machine.memory_mib
        and (not job.gpu_models or machine.gpu_model in job.gpu_models)
        and all(machine.labels.get(key) == value for key, value in job.tags.items())
    )
