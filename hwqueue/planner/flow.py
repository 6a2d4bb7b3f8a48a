"""Which node a single lease goes to, chosen for a whole queue at once, by min-cost flow.

The formula is that of Firmament (Gog et al., OSDI 2016), with classes in place of tasks: leases of
one class, tier and rank are alike but for how long they have waited. A lease of class c that goes
to node n costs, in thousandths of half a point of affinity,

    1000 * (best(c) - affinity(c, n)) / 2  +  10 * (100 - fit(c, n))

The first part is its regret. affinity is that of the class's score, from -100 to 100 times its
strength, so one who wants more regrets more. The second part decides among equals: the node with
least room to spare, 100 / (how many leases of the class have room). A lease that goes nowhere costs

    1000 * (best(c) - worst(c)) / 2 * min(1, waited / patience)  +  1100

so at first only a node that is nearly the best will do, and any once its patience is over: as it
waits for a better node without a planner. OR-tools' SimpleMinCostFlow finds the least sum:

    leases of a class  ->  nodes that have room for it  ->  sink
                       ->  sink, at the cost of waiting, by bands of how long they have waited

A node takes as many leases as it has room for of the class that it has least room for. So a plan
may leave room over, but asks for none that is not there. Tiers and ranks come one after the other.

A plan is only worth a reservation where nodes that choose by themselves would do something else
(contested): they take what scores highest on them, the oldest of it, unless it still waits for a
better node.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from uuid import UUID

from ortools.graph.python import min_cost_flow

_BANDS = 8  # of how long leases of a class have waited, and of ranks
_WAITING = 1100  # more than the fit of any node

Assignment = Mapping[UUID, UUID]  # of leases to nodes


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease that waits; of one tier and rank the oldest comes first.

    Attributes:
        waited: Seconds since it may be claimed.
    """

    lease_id: UUID
    tier: int
    rank: int
    waited: float


@dataclass(frozen=True, slots=True)
class Option:
    """A node that has room for leases of a class.

    Attributes:
        affinity: How well it suits the class, its strength included.
        room: For how many leases, if it gets no others.
    """

    node_id: UUID
    affinity: float
    room: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Leases of one class that wait.

    Attributes:
        patience: Seconds that one waits for a better node at most.
        best, worst: The affinity of the live nodes that suit it best and worst.
    """

    class_id: int
    patience: float
    best: float
    worst: float
    leases: Sequence[Lease]
    options: Sequence[Option]

    def cost(self, option: Option) -> int:
        """Of a lease on a node."""
        fit = 100 / max(1, option.room)
        return round(1000 * max(0.0, self.best - option.affinity) / 2 + 10 * (100 - fit))

    def cost_of_waiting(self, waited: float) -> int:
        """Of a lease that goes nowhere now."""
        part = min(1.0, waited / self.patience) if self.patience > 0 else 1.0
        return round(1000 * (self.best - self.worst) / 2 * part) + _WAITING

    def waits_for_better(self, lease: Lease, option: Option) -> bool:
        """Whether a node that asks now gets none of it, as `waits_for` in SQL has it."""
        if option.affinity >= self.best:
            return False
        worst = min(self.worst, option.affinity)
        part = (self.best - option.affinity) / (self.best - worst)
        return lease.waited < self.patience * part


def plan_leases(wanted: Sequence[Wanted]) -> dict[UUID, UUID]:
    """The assignment of least cost, tier by tier and rank by rank; some leases may have none."""
    room = _rooms(wanted)
    planned: dict[UUID, UUID] = {}
    for stage in _stages(wanted):
        found = _Flow(stage, room).solved()
        for node_id in found.values():
            room[node_id] -= 1
        planned |= found
    return planned


def contested(wanted: Sequence[Wanted], planned: Assignment) -> dict[UUID, UUID]:
    """The part of a plan that differs from what nodes would do by themselves.

    That depends on which node asks first, so two orders are tried. Nothing is contested where
    nodes do as well by themselves in both.
    """
    total = total_cost(wanted, planned)
    found: dict[UUID, UUID] = {}
    for is_reversed in (False, True):
        alone = choose_alone(wanted, is_reversed=is_reversed)
        if total_cost(wanted, alone) > total:
            found |= {lease: node for lease, node in planned.items() if alone.get(lease) != node}
    return found


def choose_alone(wanted: Sequence[Wanted], *, is_reversed: bool = False) -> dict[UUID, UUID]:
    """What nodes that ask one after the other get without a plan."""
    room = _rooms(wanted)
    offers: dict[UUID, list[tuple[Wanted, Option]]] = defaultdict(list)
    for each in wanted:
        for option in each.options:
            offers[option.node_id].append((each, option))
    waiting = {each.class_id: list(each.leases) for each in wanted}
    chosen: dict[UUID, UUID] = {}
    for node_id in sorted(offers, reverse=is_reversed):
        for _ in range(room[node_id]):
            taken = _first(offers[node_id], waiting)
            if taken is None:
                break
            class_id, lease = taken
            waiting[class_id].remove(lease)
            chosen[lease.lease_id] = node_id
    return chosen


def total_cost(wanted: Sequence[Wanted], assignment: Assignment) -> int:
    """Of an assignment, and of the leases that have none."""
    total = 0
    for each in wanted:
        options = {option.node_id: option for option in each.options}
        for lease in each.leases:
            node_id = assignment.get(lease.lease_id)
            total += (
                each.cost_of_waiting(lease.waited)
                if node_id is None
                else each.cost(options[node_id])
            )
    return total


def _first(
    offers: Iterable[tuple[Wanted, Option]], waiting: Mapping[int, Sequence[Lease]]
) -> tuple[int, Lease] | None:
    """What a node takes: the first tier and rank, the highest affinity, the oldest."""
    best: tuple[tuple[float, ...], int, Lease] | None = None
    for each, option in offers:
        for lease in waiting[each.class_id]:
            if each.waits_for_better(lease, option):
                continue
            key = (lease.tier, lease.rank, -option.affinity, -lease.waited)
            if best is None or key < best[0]:
                best = key, each.class_id, lease
            break  # those behind it come later
    return None if best is None else (best[1], best[2])


def _rooms(wanted: Sequence[Wanted]) -> dict[UUID, int]:
    """How many leases each node takes, of whatever class."""
    room: dict[UUID, int] = {}
    for each in wanted:
        for option in each.options:
            room[option.node_id] = min(option.room, room.get(option.node_id, option.room))
    return room


def _stages(wanted: Sequence[Wanted]) -> list[list[Wanted]]:
    """Leases of one tier and rank; from the eighth on, the rest of a tier together."""
    places = sorted({(lease.tier, lease.rank) for each in wanted for lease in each.leases})
    stage_of = {}
    for tier, ranks in groupby(places, key=lambda place: place[0]):
        for turn, place in enumerate(ranks):
            stage_of[place] = tier, min(turn, _BANDS - 1)
    stages: dict[tuple[int, int], list[Wanted]] = defaultdict(list)
    for each in wanted:
        found: dict[tuple[int, int], list[Lease]] = defaultdict(list)
        for lease in each.leases:
            found[stage_of[lease.tier, lease.rank]].append(lease)
        for stage, leases in found.items():
            stages[stage].append(
                Wanted(
                    class_id=each.class_id,
                    patience=each.patience,
                    best=each.best,
                    worst=each.worst,
                    leases=leases,
                    options=each.options,
                )
            )
    return [stages[stage] for stage in sorted(stages)]


class _Flow:
    """Leases of one tier and rank, and the nodes that have room left."""

    def __init__(self, wanted: Sequence[Wanted], room: Mapping[UUID, int]) -> None:
        self._wanted = wanted
        self._solver = min_cost_flow.SimpleMinCostFlow()
        self._nodes = sorted(node_id for node_id, left in room.items() if left > 0)
        number = {node_id: turn + 1 for turn, node_id in enumerate(self._nodes)}  # 0: the sink
        self._arcs: dict[tuple[int, UUID], int] = {}
        for turn, each in enumerate(wanted):
            source = len(number) + 1 + turn
            self._solver.set_node_supply(source, len(each.leases))
            for option in each.options:
                if option.node_id in number:
                    self._arcs[turn, option.node_id] = self._arc(
                        source, number[option.node_id], option.room, each.cost(option)
                    )
            for count, cost in self._bands(each):
                self._arc(source, 0, count, cost)
        for node_id, node in number.items():
            self._arc(node, 0, room[node_id], 0)
        self._solver.set_node_supply(0, -sum(len(each.leases) for each in wanted))

    def solved(self) -> dict[UUID, UUID]:
        """Of each class those that have waited longest, to the best of its nodes first.

        Raises: RuntimeError, where the solver finds no flow.
        """
        status = self._solver.solve()
        if status != self._solver.OPTIMAL:
            raise RuntimeError(f"the flow was not solved: SimpleMinCostFlow ended with {status}")
        found: dict[UUID, UUID] = {}
        for turn, each in enumerate(self._wanted):
            leases = iter(sorted(each.leases, key=lambda lease: -lease.waited))
            for option in sorted(each.options, key=lambda option: -option.affinity):
                arc = self._arcs.get((turn, option.node_id))
                for _ in range(0 if arc is None else self._solver.flow(arc)):
                    found[next(leases).lease_id] = option.node_id
        return found

    def _arc(self, tail: int, head: int, capacity: int, cost: int) -> int:
        arc: int = self._solver.add_arc_with_capacity_and_unit_cost(tail, head, capacity, cost)
        return arc

    @staticmethod
    def _bands(each: Wanted) -> list[tuple[int, int]]:
        """How many leases may wait at which cost, each band at that of its middle lease."""
        costs = sorted(each.cost_of_waiting(lease.waited) for lease in each.leases)
        size = -(-len(costs) // _BANDS)
        bands = [costs[start : start + size] for start in range(0, len(costs), size)]
        return [(len(band), band[len(band) // 2]) for band in bands]
