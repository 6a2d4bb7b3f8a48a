"""The configuration linear program, by column generation with OR-tools' GLOP.

A device gets a pattern, shares that fit together into what it has left, or is one of the devices of
a lease that wants whole ones. With x leases of demand d on pool p, and y devices of pool p with r
thousandths left that get pattern q:

    maximise    sum of devices(d) * x[d, p]
    such that   sum over p of x[d, p]                            <= count(d)       price of a demand
                sum over d of cpu(d) * x[d, p]                   <= cpu(p)         price of cpu
                sum over d of memory(d) * x[d, p]                <= memory(p)      price of memory
                sum over d that share s of x[d, p]
                  - sum over r, q of q[s] * y[p, r, q]           <= 0
                sum over q of y[p, r, q], and with r = 1000
                  + sum over whole d of gpus(d) * x[d, p]        <= free(p, r)     price of a device

There are too many patterns to list. What the last solution's prices call for is found by a knapsack
with repetition, for every r at once, and added until no pattern could raise the result by more than
`exact` devices in all (Gilmore and Gomory, A Linear Programming Approach to the Cutting-Stock
Problem, 1961). x and y are fractions, and cpu and memory count in sum over a pool. Both only loosen
the problem: no assignment of whole leases to nodes exceeds the result.

The knapsack's answer for r, with the last prices, is what a device with r thousandths left is
worth: the value function of the program.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ortools.linear_solver import pywraplp

from hwqueue.planner.model import WHOLE_GPU, Demand, Pool

EXACT = 1e-5  # of all devices: how far the bound may stay above the program's optimum
STEP = 10  # thousandths between two points of a curve
POINTS = WHOLE_GPU // STEP + 1
_NO_GAIN = 1e-9  # of a device: what a new pattern has to bring

Pattern = Mapping[int, int]  # how many shares of each size


@dataclass(frozen=True, slots=True, kw_only=True)
class Solution:
    """What was found.

    Attributes:
        allocated: Devices in use by the best fractional assignment that is known so far.
        bound: Devices that no assignment exceeds.
        curves: Of each pool, what a device with 0, 10, ... 1000 thousandths left is worth.
    """

    allocated: float
    bound: float
    curves: Sequence[Sequence[float]]


class Program:
    """The program of these pools and demands, and the patterns that it knows so far."""

    def __init__(self, pools: Sequence[Pool], demands: Sequence[Demand]) -> None:
        self._pools = pools
        self._demands = [demand for demand in demands if demand.count > 0]
        self._solver = pywraplp.Solver.CreateSolver("GLOP")
        self._devices: dict[tuple[int, int], Any] = {}
        self._slots: dict[tuple[int, int], Any] = {}  # shares placed, less what patterns hold
        self._shares: dict[int, set[int]] = defaultdict(set)
        self._known: set[tuple[int, int, tuple[tuple[int, int], ...]]] = set()
        self._amounts = [self._pool_rows(number) for number in range(len(pools))]
        self._counts = [self._at_most(demand.count) for demand in self._demands]
        self._on_pool: dict[int, list[int]] = defaultdict(list)
        for number, demand in enumerate(self._demands):
            for pool in demand.pools:
                self._on_pool[pool].append(number)
                self._place(number, demand, pool)
        self._solver.Objective().SetMaximization()
        for pool, level in self._devices:
            for size in self._shares[pool] if level == WHOLE_GPU else ():
                self._know(pool, level, {size: level // size})

    def solve(self, *, exact: float = EXACT, seconds: float = math.inf) -> Solution:
        """Add patterns until the optimum is known.

        Args:
            exact: How far the bound may stay above the optimum, in parts of all devices.
            seconds: After that no more patterns are looked for; the bound is less close then.

        Raises: RuntimeError, where GLOP finds no solution.
        """
        tolerance = exact * max(1, sum(pool.devices_with_room for pool in self._pools))
        best = math.inf
        while True:
            reached = self._optimum()
            knapsacks = [self._knapsack(pool) for pool in range(len(self._pools))]
            missing = 0.0
            found = []  # the prices are gone once the program changes
            for (pool, level), row in self._devices.items():
                gain = knapsacks[pool].worth(level) - float(row.dual_value())
                # dearer devices make the prices feasible for patterns that are not known yet
                missing += max(0.0, gain) * self._pools[pool].free[level]
                if gain > _NO_GAIN:
                    found.append((pool, level, knapsacks[pool].pattern(level)))
            best = min(best, reached + missing)
            late = self._solver.wall_time() > 1000 * seconds
            if missing <= tolerance or late or not self._learn(found):
                curves = [self._curve(pool, each) for pool, each in enumerate(knapsacks)]
                return Solution(allocated=reached, bound=best, curves=curves)

    def _optimum(self) -> float:
        """The optimum over the patterns that are known.

        Without presolve a solution starts from the last one. On a few programs GLOP gives up
        (abnormal) either way, but not both ways.
        """
        how = pywraplp.MPSolverParameters()
        statuses = []
        for presolve in (how.PRESOLVE_OFF, how.PRESOLVE_ON):
            how.SetIntegerParam(how.PRESOLVE, presolve)
            statuses.append(self._solver.Solve(how))
            if statuses[-1] == pywraplp.Solver.OPTIMAL:
                return float(self._solver.Objective().Value())
        raise RuntimeError(f"the program was not solved: GLOP ended with statuses {statuses}")

    def _at_most(self, limit: float) -> Any:
        return self._solver.Constraint(-self._solver.infinity(), limit)

    def _pool_rows(self, number: int) -> tuple[Any, Any]:
        """Devices of a pool; its cpu and its memory, in cores and GiB, None where not counted."""
        pool = self._pools[number]
        for level, devices in pool.free.items():
            self._devices[number, level] = self._at_most(devices)
        return (
            None if pool.cpu_milli is None else self._at_most(max(0, pool.cpu_milli) / 1000),
            None if pool.memory_mib is None else self._at_most(max(0, pool.memory_mib) / 1024),
        )

    def _place(self, number: int, demand: Demand, pool: int) -> None:
        """Leases of a demand on nodes of a pool."""
        if not demand.share and (pool, WHOLE_GPU) not in self._devices:
            return
        placed = self._solver.NumVar(0, self._solver.infinity(), "")
        self._solver.Objective().SetCoefficient(placed, demand.devices)
        self._counts[number].SetCoefficient(placed, 1)
        cpu, memory = self._amounts[pool]
        if cpu is not None:
            cpu.SetCoefficient(placed, demand.cpu_milli / 1000)
        if memory is not None:
            memory.SetCoefficient(placed, demand.memory_mib / 1024)
        if not demand.share:
            self._devices[pool, WHOLE_GPU].SetCoefficient(placed, demand.gpus)
            return
        if demand.share not in self._shares[pool]:
            self._shares[pool].add(demand.share)
            self._slots[pool, demand.share] = self._at_most(0)
        self._slots[pool, demand.share].SetCoefficient(placed, 1)

    def _know(self, pool: int, level: int, pattern: Pattern) -> bool:
        """Devices of a pool with this much left may be given this pattern; False: known before."""
        key = (pool, level, tuple(sorted(pattern.items())))
        if key in self._known:
            return False
        self._known.add(key)
        used = self._solver.NumVar(0, self._solver.infinity(), "")
        self._devices[pool, level].SetCoefficient(used, 1)
        for size, count in pattern.items():
            self._slots[pool, size].SetCoefficient(used, -count)
        return True

    def _learn(self, found: Sequence[tuple[int, int, Pattern]]) -> bool:
        """Whether there was a new pattern among them."""
        new = [self._know(*each) for each in found]
        return any(new)

    def _knapsack(self, pool: int) -> Knapsack:
        prices = {size: self._slots[pool, size].dual_value() for size in self._shares[pool]}
        return Knapsack(prices, levels=self._pools[pool].free)

    def _profit(self, number: int, pool: int) -> float:
        """What a lease brings, less the prices of all but the device that it takes.

        The prices of a slot and of a device say little where no device has room for it; this holds
        there, too.
        """
        demand = self._demands[number]
        cpu, memory = self._amounts[pool]
        return (
            demand.devices
            - float(self._counts[number].dual_value())
            - (0.0 if cpu is None else float(cpu.dual_value()) * demand.cpu_milli / 1000)
            - (0.0 if memory is None else float(memory.dual_value()) * demand.memory_mib / 1024)
        )

    def _curve(self, pool: int, solved: Knapsack) -> list[float]:
        """What a device of the pool is worth, by how much of it is left."""
        prices: dict[int, float] = defaultdict(float)
        whole = 0.0
        for number in self._on_pool[pool]:
            demand = self._demands[number]
            profit = min(demand.devices, self._profit(number, pool))
            if demand.share:
                prices[demand.share] = max(prices[demand.share], profit)
            else:
                whole = max(whole, profit / demand.gpus)
        knapsack = Knapsack(prices, levels=solved.levels)
        worth = [min(1.0, max(0.0, knapsack.worth(STEP * point))) for point in range(POINTS)]
        worth[-1] = min(1.0, max(worth[-1], whole))
        return worth


class Knapsack:
    """What shares on one device are worth most together, for every amount of room.

    Args:
        prices: What a share of each size is worth.
        levels: Amounts of room that will be asked about, besides multiples of `STEP`.
    """

    def __init__(self, prices: Mapping[int, float], *, levels: Mapping[int, int]) -> None:
        self.levels = levels
        self._unit = math.gcd(STEP, *prices, *levels)
        items = [(size // self._unit, price) for size, price in prices.items() if price > 0]
        self._worth = [0.0] * (WHOLE_GPU // self._unit + 1)
        self._taken = [0] * len(self._worth)
        for room in range(1, len(self._worth)):
            best, taken = self._worth[room - 1], 0
            for size, price in items:
                if size <= room and self._worth[room - size] + price > best:
                    best, taken = self._worth[room - size] + price, size
            self._worth[room], self._taken[room] = best, taken

    def worth(self, level: int) -> float:
        """What the best pattern for this much room is worth."""
        return self._worth[level // self._unit]

    def pattern(self, level: int) -> Pattern:
        """The best pattern itself."""
        found: Counter[int] = Counter()
        room = level // self._unit
        while room > 0:
            if self._taken[room]:
                found[self._taken[room] * self._unit] += 1
            room -= self._taken[room] or 1
        return found


def mean_curve(pools: Sequence[Pool], solution: Solution, numbers: Sequence[int]) -> list[float]:
    """One curve for some pools, weighted by their devices with room; evenly where none has room.

    numbers: Of the pools; at least one.
    """
    weights = [pools[number].devices_with_room for number in numbers]
    if not any(weights):
        weights = [1] * len(numbers)
    total = sum(weights)
    curve, least = [], 0.0
    for point in range(POINTS):
        worths = (solution.curves[number][point] for number in numbers)
        value = sum(weight * worth for weight, worth in zip(weights, worths, strict=True)) / total
        # rounded as the queue keeps it; means of rising numbers may fall in their last digit
        least = max(least, min(1.0, round(value, 6)))
        curve.append(least)
    return curve
