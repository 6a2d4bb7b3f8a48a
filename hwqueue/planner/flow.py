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

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any
from uuid import UUID

import numpy as np
from numpy.typing import NDArray
from ortools.graph.python import min_cost_flow

_BANDS = 8  # of how long leases of a class have waited, and of ranks
_WAITING = 1100  # more than the fit of any node

Assignment = Mapping[UUID, UUID]  # of leases to nodes
IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


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

    def patience_for(self, option: Option) -> float:
        """How long one must have waited for a node that asks to get it, as `waits_for` in SQL."""
        if option.affinity >= self.best:
            return -math.inf
        worst = min(self.worst, option.affinity)
        return self.patience * (self.best - option.affinity) / (self.best - worst)


@dataclass(slots=True)
class _Line:
    """Leases of a class that no node has taken yet, in order, and how long one has waited."""

    leases: list[Lease]
    longest: float = field(init=False)

    def __post_init__(self) -> None:
        self._measure()

    def take(self, lease: Lease) -> None:
        """Take one out."""
        self.leases.remove(lease)
        self._measure()

    def _measure(self) -> None:
        self.longest = max((lease.waited for lease in self.leases), default=-math.inf)


_Offer = tuple[int, float, float]  # class by number, affinity of a node, how long one waits for it
_Asking = tuple[UUID, int, Sequence[_Offer]]  # a node, how many leases it takes, and which it may
_Stage = Mapping[int, Sequence[Lease]]  # leases of one tier and rank, by the number of their class


def plan_leases(wanted: Sequence[Wanted]) -> dict[UUID, UUID]:
    """The assignment of least cost, tier by tier and rank by rank; some leases may have none.

    Raises: RuntimeError, where the solver finds no flow.
    """
    arcs = _Arcs(wanted)
    planned: dict[UUID, UUID] = {}
    for stage in _stages(wanted):
        planned |= arcs.assigned(stage)
    return planned


def contested(wanted: Sequence[Wanted], planned: Assignment) -> dict[UUID, UUID]:
    """The part of a plan that differs from what nodes would do by themselves.

    That depends on which node asks first, so two orders are tried. Nothing is contested where
    nodes do as well by themselves in both.
    """
    options = by_node(wanted)
    total = total_cost(wanted, options, planned)
    offers = offers_of(wanted)
    found: dict[UUID, UUID] = {}
    for asking in (offers, offers[::-1]):
        alone = chosen_alone(wanted, asking)
        if total_cost(wanted, options, alone) > total:
            found |= {lease: node for lease, node in planned.items() if alone.get(lease) != node}
    return found


def offers_of(wanted: Sequence[Wanted]) -> list[_Asking]:
    """Of each node what it may take."""
    offers: dict[UUID, list[_Offer]] = defaultdict(list)
    for turn, each in enumerate(wanted):
        for option in each.options:
            offers[option.node_id].append((turn, option.affinity, each.patience_for(option)))
    room = _rooms(wanted)
    return [(node_id, room[node_id], offers[node_id]) for node_id in sorted(offers)]


def chosen_alone(wanted: Sequence[Wanted], asking: Sequence[_Asking]) -> dict[UUID, UUID]:
    """What nodes get without a plan, which ask one after the other in this order."""
    lines = [_Line(list(each.leases)) for each in wanted]
    left = sum(len(each.leases) for each in wanted)
    chosen: dict[UUID, UUID] = {}
    for node_id, room, offers in asking:
        for _ in range(min(room, left - len(chosen))):
            taken = _first(offers, lines)
            if taken is None:
                break
            turn, lease = taken
            lines[turn].take(lease)
            chosen[lease.lease_id] = node_id
    return chosen


def _first(offers: Iterable[_Offer], lines: Sequence[_Line]) -> tuple[int, Lease] | None:
    """What a node takes: the first tier and rank, the highest affinity, the oldest."""
    best: tuple[tuple[float, ...], int, Lease] | None = None
    for turn, affinity, patience in offers:
        line = lines[turn]
        if not line.leases or line.longest < patience:
            continue
        # those behind it come later
        lease = next(lease for lease in line.leases if lease.waited >= patience)
        key = (lease.tier, lease.rank, -affinity, -lease.waited)
        if best is None or key < best[0]:
            best = key, turn, lease
    return None if best is None else (best[1], best[2])


def by_node(wanted: Sequence[Wanted]) -> list[dict[UUID, Option]]:
    """Of each class its options, by node."""
    return [{option.node_id: option for option in each.options} for each in wanted]


def total_cost(
    wanted: Sequence[Wanted], options: Sequence[Mapping[UUID, Option]], assignment: Assignment
) -> int:
    """Of an assignment, and of the leases that have none; `options`: see `by_node`."""
    total = 0
    for each, of_node in zip(wanted, options, strict=True):
        for lease in each.leases:
            node_id = assignment.get(lease.lease_id)
            total += each.cost_of_waiting(lease.waited) if node_id is None else each.cost(of_node[node_id])
    return total


def _rooms(wanted: Sequence[Wanted]) -> dict[UUID, int]:
    """How many leases each node takes, of whatever class."""
    room: dict[UUID, int] = {}
    for each in wanted:
        for option in each.options:
            room[option.node_id] = min(option.room, room.get(option.node_id, option.room))
    return room


def _stages(wanted: Sequence[Wanted]) -> list[_Stage]:
    """Leases of one tier and rank; from the eighth on, the rest of a tier together."""
    places = sorted({(lease.tier, lease.rank) for each in wanted for lease in each.leases})
    stage_of = {}
    for tier, ranks in groupby(places, key=lambda place: place[0]):
        for turn, place in enumerate(ranks):
            stage_of[place] = tier, min(turn, _BANDS - 1)
    stages: dict[tuple[int, int], dict[int, list[Lease]]] = defaultdict(lambda: defaultdict(list))
    for turn, each in enumerate(wanted):
        for lease in each.leases:
            stages[stage_of[lease.tier, lease.rank]][turn].append(lease)
    return [stages[stage] for stage in sorted(stages)]


class _Arcs:
    """Which class may go to which node, at what cost; and the room that nodes have left.

    The columns are made once, and each stage takes of them what it needs: the solver reads an array
    a hundred times as fast as it takes one arc after the other.
    """

    def __init__(self, wanted: Sequence[Wanted]) -> None:
        self._wanted = wanted
        room = _rooms(wanted)
        self._nodes = sorted(room)
        number = {node_id: turn for turn, node_id in enumerate(self._nodes)}
        self._left = np.array([room[node_id] for node_id in self._nodes], np.int64)
        options = [option for each in wanted for option in each.options]
        counts = np.array([len(each.options) for each in wanted], np.int64)
        self._source = np.repeat(np.arange(len(wanted)), counts)
        self._node = np.array([number[option.node_id] for option in options], np.int64)
        self._room = np.array([option.room for option in options], np.int64)
        self._affinity = np.array([option.affinity for option in options], np.float64)
        self._cost = self._costs(np.repeat([each.best for each in wanted], counts))

    def _costs(self, best: FloatArray) -> IntArray:
        """As `Wanted.cost`."""
        regret = 1000 * np.maximum(0.0, best - self._affinity) / 2
        fit = 100 / np.maximum(1, self._room)
        return np.rint(regret + 10 * (100 - fit)).astype(np.int64)

    def assigned(self, stage: _Stage) -> dict[UUID, UUID]:
        """The assignment of least cost of the leases of a stage; they take room.

        Of each class those come first that have waited longest, to the best of its nodes.
        """
        chosen = np.isin(self._source, list(stage)) & (self._left[self._node] > 0)
        taken = np.flatnonzero(chosen)
        flows = self._solved(stage, taken)
        used = taken[flows > 0]
        counts = dict(zip(used.tolist(), flows[flows > 0].tolist(), strict=True))
        order = used[np.lexsort((-self._affinity[used], self._source[used]))]
        waiting = {
            turn: iter(sorted(leases, key=lambda lease: -lease.waited)) for turn, leases in stage.items()
        }
        found: dict[UUID, UUID] = {}
        for arc in order.tolist():
            node = int(self._node[arc])
            self._left[node] -= counts[arc]
            for _ in range(counts[arc]):
                found[next(waiting[int(self._source[arc])]).lease_id] = self._nodes[node]
        return found

    def _solved(self, stage: _Stage, taken: IntArray) -> IntArray:
        """How many leases go along each of these arcs.

        The sink is vertex 0, then come the nodes, then the classes.
        """
        first = 1 + len(self._nodes)
        bands = [
            (first + turn, count, cost)
            for turn, leases in stage.items()
            for count, cost in _bands(self._wanted[turn], leases)
        ]
        band = np.array(bands, np.int64).reshape(-1, 3)
        nodes = np.arange(len(self._nodes))
        solver = min_cost_flow.SimpleMinCostFlow()
        arcs = solver.add_arcs_with_capacity_and_unit_cost(
            _vertices(first + self._source[taken], band[:, 0], 1 + nodes),
            _vertices(1 + self._node[taken], np.zeros(len(band) + len(nodes))),
            np.concatenate([self._room[taken], band[:, 1], self._left]),
            np.concatenate([self._cost[taken], band[:, 2], np.zeros(len(nodes), np.int64)]),
        )
        counts = np.array([len(leases) for leases in stage.values()], np.int64)
        solver.set_nodes_supplies(
            _vertices(np.zeros(1), first + np.array(list(stage))), np.append(-counts.sum(), counts)
        )
        status = solver.solve()
        if status != solver.OPTIMAL:
            raise RuntimeError(f"the flow was not solved: SimpleMinCostFlow ended with {status}")
        found: IntArray = solver.flows(arcs[: len(taken)])
        return found


def _vertices(*parts: NDArray[Any]) -> NDArray[np.int32]:
    return np.concatenate(parts).astype(np.int32)


def _bands(each: Wanted, leases: Sequence[Lease]) -> list[tuple[int, int]]:
    """How many leases may wait at which cost, each band at that of its middle lease."""
    costs = sorted(each.cost_of_waiting(lease.waited) for lease in leases)
    size = -(-len(costs) // _BANDS)
    bands = [costs[start : start + size] for start in range(0, len(costs), size)]
    return [(len(band), band[len(band) // 2]) for band in bands]
