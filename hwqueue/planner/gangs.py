"""Which gang goes where, chosen for all that wait at once, with OR-tools' CP-SAT.

Gangs of one rank whose members ask for the same have one shape. Places are values of the domain
that the gangs are together in. With x gangs of shape s in place p, which is an integer:

    maximise    sum of devices(s) * x[s, p]
    such that   sum over p of x[s, p]                                     <= gangs of s
                for each class c and each place p:
                sum over s, c' of members(s, c') * units(c', c) * x[s, p] <= room(c, p)

room(c, p) is how many leases of class c the place has room for if it gets no others. units(c', c)
is how many of these a member of class c' takes: in room for 16 leases of one GPU, one of 8 GPUs
takes 8. That is a relaxation: no placement is forbidden that exists, and one may be planned that
does not. The queue checks it.

With a variable for each gang and place CP-SAT finds nothing in the time of a round: gangs of one
shape can be exchanged in too many ways. The search begins with best fit, the largest gangs first,
each in the tightest place. If that places all gangs, nothing is searched.

Ranks come one after the other, and before each of them the gang that is the first in order: what
waits longest is not passed by again and again for what is larger.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from ortools.sat.python import cp_model

from hwqueue.planner.model import WHOLE_GPU

_BANDS = 8  # of ranks: what has a later one counts as of the last band

Choice = Mapping[tuple[int, int], int]  # how many gangs of a shape go to a place, by their numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """Members of a gang that ask for the same.

    Attributes:
        gpus: Whole devices, or 1 for a share.
        share: Thousandths of one device; 0: whole devices.
        is_plain: Nothing else is asked for than the amounts here.
    """

    class_id: str
    members: int
    gpus: int
    share: int
    cpu_milli: int
    memory_mib: int
    is_plain: bool

    @property
    def devices(self) -> int:
        """Thousandths of GPUs that a member holds."""
        return self.share or self.gpus * WHOLE_GPU

    def units(self, other: Need) -> int:
        """How many members of the other need find room in that of one of this need, at least."""
        if self.class_id == other.class_id:
            return 1
        if not other.is_plain:
            return 0
        found = [
            mine // theirs
            for mine, theirs in ((self.cpu_milli, other.cpu_milli), (self.memory_mib, other.memory_mib))
            if theirs
        ]
        if other.share:
            found.append(self.share // other.share if self.share else self.gpus * (WHOLE_GPU // other.share))
        elif other.gpus:
            found.append(0 if self.share else self.gpus // other.gpus)
        return min(found, default=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """A gang that waits."""

    gang_id: UUID
    rank: int
    needs: tuple[Need, ...]

    @property
    def weight(self) -> int:
        """What placing it brings: thousandths of GPUs; of those without, members."""
        return sum(need.members * (need.devices + 1) for need in self.needs)


@dataclass(frozen=True, slots=True)
class Place:
    """A value of a domain, and its nodes: how many have which rooms, by class."""

    name: str
    nodes: Sequence[tuple[int, Mapping[str, int]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What was found.

    Attributes:
        places: For each gang that has one its place, in the order of the gangs.
        devices: Thousandths of GPUs, and members, that this places.
        is_optimal: No more can be placed, rank by rank.
    """

    places: Sequence[tuple[UUID, str]]
    devices: int
    is_optimal: bool


@dataclass(frozen=True, slots=True)
class _Shape:
    band: int
    needs: tuple[Need, ...]
    gangs: list[Gang]

    @property
    def weight(self) -> int:
        return self.gangs[0].weight


def plan_gangs(gangs: Sequence[Gang], places: Sequence[Place], *, seconds: float) -> Plan:
    """Choose places for gangs, which come in order.

    Args:
        seconds: How long better ones than those of best fit are searched for; 0: not at all.
    """
    shapes = _shapes(gangs)
    rooms = _Rooms(shapes, places)
    found = rooms.best_fit()
    is_optimal = sum(found.values()) == len(gangs)
    if not is_optimal and seconds > 0:
        better, is_optimal = _Search(shapes, rooms).improved(found, seconds)
        found = dict(better)
    order = {gang.gang_id: turn for turn, gang in enumerate(gangs)}
    chosen = sorted(_handed_out(shapes, places, found), key=lambda pair: order[pair[0]])
    return Plan(
        places=chosen,
        devices=sum(shapes[shape].weight * count for (shape, _), count in found.items()),
        is_optimal=is_optimal,
    )


def _shapes(gangs: Sequence[Gang]) -> list[_Shape]:
    """Gangs that can be exchanged; the first gang of a rank is a shape of its own."""
    ranks = sorted({gang.rank for gang in gangs})
    found: dict[tuple[int, tuple[Need, ...]], _Shape] = {}
    first = set[int]()
    for gang in gangs:
        band = 2 * min(ranks.index(gang.rank), _BANDS - 1) + 1
        if band not in first:
            first.add(band)
            band -= 1
        shape = found.setdefault((band, gang.needs), _Shape(band, gang.needs, []))
        shape.gangs.append(gang)
    return sorted(found.values(), key=lambda shape: (shape.band, -shape.weight))


class _Rooms:
    """What the places have room for, and what gangs take of it."""

    def __init__(self, shapes: Sequence[_Shape], places: Sequence[Place]) -> None:
        self._shapes = shapes
        needs = {need.class_id: need for shape in shapes for need in shape.needs}
        self.left: list[dict[str, int]] = []  # of each place, by class
        self.taken: list[dict[int, dict[str, int]]] = []  # of each place, by shape: what one takes
        for place in places:
            left: dict[str, int] = defaultdict(int)
            for nodes, room in place.nodes:
                for class_id in room.keys() & needs.keys():
                    left[class_id] += nodes * room[class_id]
            self.left.append(dict(left))
            units = _units(needs, place)
            self.taken.append(
                {
                    number: taken
                    for number, shape in enumerate(shapes)
                    if (taken := _taken(shape, units, left)) is not None
                }
            )

    def best_fit(self) -> dict[tuple[int, int], int]:
        """Shapes in their order, each gang in the place that has least left for it."""
        left = [dict(each) for each in self.left]
        found: dict[tuple[int, int], int] = defaultdict(int)
        for number, shape in enumerate(self._shapes):
            first = shape.needs[0].class_id
            for _ in shape.gangs:
                fits = [
                    (left[place][first], place)
                    for place, takers in enumerate(self.taken)
                    if (taken := takers.get(number)) is not None
                    and all(count <= left[place][class_id] for class_id, count in taken.items())
                ]
                if not fits:
                    break
                _, place = min(fits)
                for class_id, count in self.taken[place][number].items():
                    left[place][class_id] -= count
                found[number, place] += 1
        return dict(found)


def _units(needs: Mapping[str, Need], place: Place) -> dict[tuple[str, str], int]:
    """How much of the room for each class a member of each class takes on the nodes of a place."""
    found = {}
    for mine in needs.values():
        rooms = [room for _, room in place.nodes if room.get(mine.class_id)]
        for other in needs.values():
            # nodes that the others may not use take nothing from them
            if not all(room.get(other.class_id) for room in rooms):
                continue
            count = mine.units(other)
            # a node that runs few leases at a time has no room for that many
            if any(room[other.class_id] < count * room[mine.class_id] for room in rooms):
                count = min(count, 1)
            if count:
                found[mine.class_id, other.class_id] = count
    return found


def _taken(
    shape: _Shape, units: Mapping[tuple[str, str], int], left: Mapping[str, int]
) -> dict[str, int] | None:
    """What a gang takes of the room for each class; None: there is too little."""
    taken: dict[str, int] = defaultdict(int)
    for need in shape.needs:
        if need.class_id not in left:
            return None
        for (mine, other), count in units.items():
            if mine == need.class_id:
                taken[other] += need.members * count
    fits = all(count <= left[class_id] for class_id, count in taken.items())
    return dict(taken) if fits else None


class _Search:
    """The integer program."""

    def __init__(self, shapes: Sequence[_Shape], rooms: _Rooms) -> None:
        self._shapes = shapes
        self._model = cp_model.CpModel()
        self._counts: dict[tuple[int, int], Any] = {}
        self._most: dict[int, int] = defaultdict(int)  # gangs of a shape that fit, if alone
        for place, takers in enumerate(rooms.taken):
            rows: dict[str, list[Any]] = defaultdict(list)
            for number, taken in takers.items():
                left = rooms.left[place]
                most = min(left[class_id] // count for class_id, count in taken.items())
                most = min(most, len(shapes[number].gangs))
                count = self._model.new_int_var(0, most, "")
                self._counts[number, place] = count
                self._most[number] += most
                for class_id, each in taken.items():
                    rows[class_id].append(each * count)
            for class_id, row in rows.items():
                self._model.add(sum(row) <= rooms.left[place][class_id])
        for number, shape in enumerate(shapes):
            row = [count for (mine, _), count in self._counts.items() if mine == number]
            self._model.add(sum(row) <= len(shape.gangs))
            self._most[number] = min(self._most[number], len(shape.gangs))

    def improved(self, found: Choice, seconds: float) -> tuple[Choice, bool]:
        """The best choice, band by band, and whether it is known to be."""
        until = time.monotonic() + seconds
        is_optimal = True
        for band in sorted({shape.band for shape in self._shapes}):
            weights = {
                key: self._shapes[key[0]].weight for key in self._counts if self._shapes[key[0]].band == band
            }
            if not weights:
                continue
            worth = sum(weight * self._counts[key] for key, weight in weights.items())
            reached = sum(weight * found.get(key, 0) for key, weight in weights.items())
            if reached < sum(
                shape.weight * self._most[number]
                for number, shape in enumerate(self._shapes)
                if shape.band == band
            ):
                status, better = self._solved(worth, found, until - time.monotonic())
                is_optimal = is_optimal and status == cp_model.OPTIMAL
                more = sum(weight * better.get(key, 0) for key, weight in weights.items())
                if more > reached:
                    found, reached = better, more
            self._model.add(worth >= reached)
        return found, is_optimal

    def _solved(self, worth: Any, hint: Choice, seconds: float) -> tuple[Any, Choice]:
        """The solver's status, and the choice that it found, if any."""
        self._model.clear_hints()  # type: ignore[no-untyped-call]
        for key, count in self._counts.items():
            self._model.add_hint(count, hint.get(key, 0))
        self._model.maximize(worth)
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1  # what a planner may use
        solver.parameters.max_time_in_seconds = max(0.01, seconds)
        status = solver.solve(self._model)
        if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            return status, {}
        values = {key: solver.value(count) for key, count in self._counts.items()}
        return status, {key: value for key, value in values.items() if value}


def _handed_out(shapes: Sequence[_Shape], places: Sequence[Place], found: Choice) -> list[tuple[UUID, str]]:
    """The gangs that come first in each shape, with their places."""
    chosen = []
    waiting = [iter(shape.gangs) for shape in shapes]
    for (shape, place), count in sorted(found.items()):
        for _ in range(count):
            chosen.append((next(waiting[shape]).gang_id, places[place].name))
    return chosen
