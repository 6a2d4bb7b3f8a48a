"""The planner's parts against all choices of small worlds: the program, kinds put together, leases, gangs."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ortools.linear_solver import pywraplp

from hwqueue.planner.condense import grouped, solve_condensed
from hwqueue.planner.flow import (
    Lease,
    Option,
    Wanted,
    by_node,
    chosen_alone,
    contested,
    offers_of,
    plan_leases,
    total_cost,
)
from hwqueue.planner.gangs import Gang, Need, Place, plan_gangs
from hwqueue.planner.model import Demand, Pool
from hwqueue.planner.program import POINTS, Knapsack, Program, mean_curve
from lab.planner.made_up import Fleet

SIZES = (160, 190, 230, 320, 470, 550, 810)
LEVELS = (190, 420, 650, 1000)


def demand(count: int, share: int, pools: Sequence[int] = (0,), cpu: int = 0) -> Demand:
    """Leases that want a share; 0: a whole device."""
    return Demand(count=count, gpus=1, share=share, cpu_milli=cpu, memory_mib=0, pools=tuple(pools))


def pool(free: Mapping[int, int], cpu: int | None = None) -> Pool:
    return Pool(cpu_milli=cpu, memory_mib=None, free=free)


def patterns(room: int, sizes: Sequence[int]) -> Iterator[Counter[int]]:
    """All that fits into this much room, one way each."""
    yield Counter()
    for at, size in enumerate(sizes):
        if size <= room:
            for rest in patterns(room - size, sizes[at:]):
                yield Counter([size]) + rest


def enumerated(pools: Sequence[Pool], demands: Sequence[Demand]) -> float:
    """The optimum with all patterns, each a column from the start."""
    solver = pywraplp.Solver.CreateSolver("GLOP")
    infinity = solver.infinity()
    total = {each.share: solver.Constraint(-infinity, 0) for each in demands}
    counts = Counter[int]()
    for each in demands:
        counts[each.share] += each.count
    for share, row in total.items():
        row.SetUb(counts[share])
    for number, there in enumerate(pools):
        sizes = sorted({found.share or 1000 for found in demands if number in found.pools}, reverse=True)
        for level, devices in there.free.items():
            left = solver.Constraint(-infinity, devices)
            for pattern in patterns(level, sizes):
                used = solver.NumVar(0, infinity, "")
                left.SetCoefficient(used, 1)
                solver.Objective().SetCoefficient(used, sum(pattern.elements()) / 1000)
                for size, count in pattern.items():
                    total[size % 1000].SetCoefficient(used, count)
    solver.Objective().SetMaximization()
    assert solver.Solve() == solver.OPTIMAL
    return float(solver.Objective().Value())


worlds = st.tuples(
    st.lists(
        st.dictionaries(st.sampled_from(LEVELS), st.integers(1, 3), min_size=1, max_size=3),
        min_size=1,
        max_size=2,
    ),
    st.dictionaries(st.sampled_from((0, *SIZES)), st.integers(1, 4), min_size=1, max_size=4),
)


@settings(max_examples=60, deadline=None)
@given(worlds)
def test_columns_that_are_made_reach_what_all_of_them_do(
    world: tuple[list[dict[int, int]], dict[int, int]],
) -> None:
    frees, wanted = world
    pools = [pool(free) for free in frees]
    # every demand suits all pools: which ones do is looked at by the tests of the bound
    demands = [demand(count, share, range(len(pools))) for share, count in wanted.items()]
    found = Program(pools, demands).solve()
    optimum = enumerated(pools, demands)
    assert found.allocated == pytest.approx(optimum, abs=1e-3)
    assert found.bound >= optimum - 1e-7
    assert found.bound == pytest.approx(optimum, abs=1e-3)
    for curve in found.curves:
        assert len(curve) == POINTS
        assert list(curve) == sorted(curve)
        assert 0 <= curve[0] <= curve[-1] <= 1


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(st.sampled_from(SIZES), st.floats(0, 1), min_size=1, max_size=4),
    st.sampled_from((0, 150, 190, 420, 650, 1000)),
)
def test_the_knapsack_finds_the_best_pattern(prices: dict[int, float], room: int) -> None:
    knapsack = Knapsack(prices, levels={})
    best = max(
        sum(prices[size] * count for size, count in pattern.items())
        for pattern in patterns(room, sorted(prices, reverse=True))
    )
    assert knapsack.worth(room) == pytest.approx(best)
    found = knapsack.pattern(room)
    assert sum(size * count for size, count in found.items()) <= room
    assert sum(prices[size] * count for size, count in found.items()) == pytest.approx(best)


def worth(curve: Sequence[float], left: int) -> float:
    return curve[left // 10]


def test_what_room_is_worth() -> None:
    """The 810s leave more room for 190s than there are 190s, until there are many of them."""
    demands = [demand(1000, 810), demand(400, 470), demand(400, 530)]
    [few] = Program([pool({1000: 500})], [*demands, demand(3, 190)]).solve().curves
    assert worth(few, 190) == pytest.approx(0)
    # a device is worth what the 810s that find none would get out of it
    assert worth(few, 1000) == pytest.approx(0.81)
    assert worth(few, 470) + worth(few, 530) == pytest.approx(0.81)
    [many] = Program([pool({1000: 500})], [*demands, demand(5000, 190)]).solve().curves
    assert (worth(many, 190), worth(many, 1000)) == pytest.approx((0.19, 1))
    # as much as an empty pool would gain by a bit of it
    [curve] = Program([pool({})], [demand(9, 470), demand(9, 250)]).solve().curves
    assert [worth(curve, each) for each in (240, 250, 500, 720, 1000)] == pytest.approx(
        [0, 0.25, 0.5, 0.72, 1.0]
    )
    demands = [demand(99, 500, cpu=4000), demand(99, 250, cpu=1000)]
    roomy, scarce = (Program([pool({1000: 4}, cpu)], demands).solve().curves[0][-1] for cpu in (99_000, 8000))
    assert roomy == pytest.approx(1)
    assert scarce < 0.1


def test_one_curve_for_several_pools() -> None:
    pools = [pool({1000: 3}), pool({1000: 1}), pool({})]
    found = Program(pools, [demand(99, 300), demand(1, 500, (1,))]).solve()
    curves = found.curves
    assert mean_curve(pools, found, [1]) == pytest.approx(curves[1], abs=1e-6)
    both = [(3 * one + other) / 4 for one, other in zip(*curves[:2], strict=True)]
    assert mean_curve(pools, found, [0, 1]) == pytest.approx(both, abs=1e-6)
    assert mean_curve(pools, found, [2]) == pytest.approx(curves[2], abs=1e-6)


SMALL = Fleet(nodes=200, kinds=40, classes=60, pending=600, used=0.7)


@pytest.fixture(scope="module")
def made() -> tuple[list[Pool], list[Demand]]:
    return SMALL.made(1)


def test_each_pool_is_in_one_group_of_not_too_many(made: tuple[list[Pool], list[Demand]]) -> None:
    pools, demands = made
    mixed = [*pools, *(Pool(cpu_milli=None, memory_mib=None, free={1000: n}) for n in range(9))]
    for most in (4, 7, 20, 48):
        groups = grouped(mixed, demands, most)
        assert len(groups) <= most
        assert sorted(pool for group in groups for pool in group) == list(range(len(mixed)))
        assert all(len({mixed[pool].cpu_milli is None for pool in group}) == 1 for group in groups)


def test_kinds_that_suit_the_same_are_together() -> None:
    pools = [Pool(cpu_milli=None, memory_mib=None, free={1000: 5}) for _ in range(6)]
    demands = [
        Demand(count=9, gpus=1, share=0, cpu_milli=0, memory_mib=0, pools=suited)
        for suited in ((0, 2, 4), (1, 3, 5))
    ]
    assert sorted(map(sorted, grouped(pools, demands, 3))) == [[0, 2, 4], [1, 3, 5]]


def test_few_pools_are_left_alone(made: tuple[list[Pool], list[Demand]]) -> None:
    pools, demands = made
    alone = Program(pools, demands).solve()
    same = solve_condensed(pools, demands, most=len(pools), seconds=60)
    assert same.bound == pytest.approx(alone.bound, rel=1e-4)


def test_no_assignment_exceeds_the_bound_of_the_condensed(made: tuple[list[Pool], list[Demand]]) -> None:
    pools, demands = made
    alone = Program(pools, demands).solve()
    fewer = solve_condensed(pools, demands, most=8, seconds=60)
    assert fewer.bound >= alone.allocated - 1e-6
    assert len(fewer.curves) == len(pools)
    for curve in fewer.curves:
        assert list(curve) == sorted(curve)


GPU, DISK, CPU = (UUID(int=number) for number in (101, 102, 103))


def wanted(
    class_id: int,
    affinities: Mapping[UUID, float],
    *waited: float,
    rank: int = 0,
    patience: float = 0,
    room: int = 1,
) -> Wanted:
    """Leases of a class that have waited so long, and nodes with room."""
    return Wanted(
        class_id=class_id,
        patience=patience,
        best=max(affinities.values()),
        worst=min(affinities.values()),
        leases=[
            Lease(UUID(int=100 * class_id + turn), 0, rank, seconds)
            for turn, seconds in enumerate(sorted(waited, reverse=True))
        ],
        options=[Option(node, affinity, room) for node, affinity in affinities.items()],
    )


def by_class(assignment: Mapping[UUID, UUID]) -> list[tuple[int, UUID]]:
    return sorted((lease.int // 100, node) for lease, node in assignment.items())


def test_the_one_that_loses_less_goes_elsewhere() -> None:
    """The first scores higher on the GPU node, and would hardly miss it."""
    one = wanted(1, {GPU: 100.0, DISK: 90.0}, 5)
    other = wanted(2, {GPU: 60.0, DISK: 0.0}, 4)
    plan = plan_leases([one, other])
    assert by_class(plan) == [(1, DISK), (2, GPU)]
    assert by_class(chosen_alone([one, other], offers_of([one, other]))) == [(1, GPU), (2, DISK)]
    assert contested([one, other], plan) == plan


def test_what_nodes_do_by_themselves_is_not_contested() -> None:
    one = wanted(1, {GPU: 100.0, CPU: 0.0}, 5, 4)
    other = wanted(2, {GPU: 0.0, CPU: 100.0}, 9)
    classes = [one, other]
    plan = plan_leases(classes)
    assert len(plan) == 2
    assert contested(classes, plan) == {}


def test_a_lease_waits_for_a_better_node_as_long_as_its_patience() -> None:
    """Its best node is full: it goes to none, then to the other one."""
    for waited, expected in ((0.0, []), (10.0, [(1, CPU)])):
        full = Wanted(
            class_id=1,
            patience=10.0,
            best=100.0,
            worst=0.0,
            leases=[Lease(UUID(int=100), 0, 0, waited)],
            options=[Option(CPU, 0.0, 1)],
        )
        assert by_class(plan_leases([full])) == expected
        assert by_class(chosen_alone([full], offers_of([full]))) == expected


def test_a_rank_comes_before_the_next() -> None:
    late = wanted(1, {GPU: 100.0}, 5, rank=1)
    first = wanted(2, {GPU: 10.0}, 5)
    assert by_class(plan_leases([late, first])) == [(2, GPU)]


def test_of_equal_nodes_the_fullest() -> None:
    each = Wanted(
        class_id=1,
        patience=0,
        best=0.0,
        worst=0.0,
        leases=[Lease(UUID(int=100), 0, 0, 1.0)],
        options=[Option(GPU, 0.0, 8), Option(CPU, 0.0, 2)],
    )
    assert by_class(plan_leases([each])) == [(1, CPU)]


def every(leases: Sequence[UUID], room: Mapping[UUID, int]) -> Iterator[dict[UUID, UUID]]:
    """All assignments that no node has too little room for."""
    if not leases:
        yield {}
        return
    for rest in every(leases[1:], room):
        yield rest
        for node, left in room.items():
            if list(rest.values()).count(node) < left:
                yield {leases[0]: node} | rest


AFFINITY = st.integers(-100, 100).map(float)
CLASS = st.tuples(
    st.tuples(AFFINITY, AFFINITY, AFFINITY),
    st.lists(st.integers(0, 6).map(float), min_size=1, max_size=2),
    st.sampled_from([0.0, 4.0]),
)


@given(st.lists(CLASS, min_size=1, max_size=2), st.integers(1, 2))
@settings(max_examples=20, deadline=None)
def test_no_assignment_costs_less(
    classes: list[tuple[tuple[float, ...], list[float], float]], room: int
) -> None:
    nodes = (GPU, DISK, CPU)
    world = [
        wanted(turn + 1, dict(zip(nodes, affinities, strict=True)), *waited, patience=patience, room=room)
        for turn, (affinities, waited, patience) in enumerate(classes)
    ]
    leases = [lease.lease_id for each in world for lease in each.leases]
    options, all_of_them = by_node(world), every(leases, dict.fromkeys(nodes, room))
    best = min(total_cost(world, options, assignment) for assignment in all_of_them)
    assert total_cost(world, options, plan_leases(world)) == pytest.approx(best)


GANG_SIZES = (1, 2, 4, 8)


def need(members: int, gpus: int, share: int = 0, *, cpu: int = 0, is_plain: bool = True) -> Need:
    return Need(
        class_id=f"{gpus}/{share}/{cpu}/{is_plain}",
        members=members,
        gpus=gpus,
        share=share,
        cpu_milli=cpu,
        memory_mib=0,
        is_plain=is_plain,
    )


def gangs(*members: tuple[int, int], rank: int = 0, start: int = 0) -> list[Gang]:
    """Gangs of so many members with so many GPUs each."""
    return [
        Gang(gang_id=UUID(int=start + turn), rank=rank, needs=(need(*each),))
        for turn, each in enumerate(members)
    ]


def rack(name: str, *free: int) -> Place:
    """Nodes with so many GPUs free each."""
    rooms = [(1, {f"{size}/0/0/True": gpus // size for size in GANG_SIZES}) for gpus in free]
    return Place(name, [(count, {key: n for key, n in room.items() if n}) for count, room in rooms])


def planned(chosen: Sequence[Gang], *places: Place) -> dict[int, str]:
    plan = plan_gangs(chosen, places, seconds=10)
    return {gang_id.int: place for gang_id, place in plan.places}


def best(wanted: Sequence[Gang], racks: Sequence[Sequence[int]]) -> int:
    """The thousandths and members that all ways to place the gangs reach at most.

    Nodes have 8 GPUs at most and members ask for powers of two, so members fit onto nodes largest
    first or not at all.
    """
    if not wanted:
        return 0
    found = best(wanted[1:], racks)
    for at, free in enumerate(racks):
        left = filled(wanted[0], free)
        if left is not None:
            rest = [*racks[:at], left, *racks[at + 1 :]]
            found = max(found, wanted[0].weight + best(wanted[1:], rest))
    return found


def filled(gang: Gang, free: Sequence[int]) -> list[int] | None:
    left = sorted(free)
    [each] = gang.needs
    for _ in range(each.members):
        # the fullest node that fits
        node = next((n for n, gpus in enumerate(left) if gpus >= each.gpus), None)
        if node is None:
            return None
        left[node] -= each.gpus
    return left


def test_what_fits_is_placed_where_it_fits_tightest_the_oldest_first() -> None:
    wanted = gangs((4, 8), (3, 8))
    assert planned(wanted, rack("six", *[8] * 6), rack("four", *[8] * 4)) == {0: "four", 1: "six"}
    # it puts a 5 into each rack, and then a 3 into each of them; the third 3 finds no room
    wanted = gangs((5, 8), (5, 8), (3, 8), (3, 8), (3, 8))
    found = planned(wanted, rack("ten", *[8] * 10), rack("nine", *[8] * 9))
    assert found == {0: "ten", 1: "ten", 2: "nine", 3: "nine", 4: "nine"}
    # the second one brings more, and there is room for one of them
    assert planned(gangs((2, 8), (4, 8)), rack("a", *[8] * 5)) == {0: "a"}
    assert planned(gangs((6, 8), (2, 8), (4, 8)), rack("a", *[8] * 5)) == {2: "a"}
    urgent = gangs((3, 8), rank=-5)
    others = gangs((4, 8), (4, 8), start=1)
    assert planned([*urgent, *others], rack("a", *[8] * 4)) == {0: "a"}
    found = planned(gangs(*[(2, 8)] * 5), rack("a", *[8] * 4), rack("b", *[8] * 3))
    assert sorted(found) == [0, 1, 2]


def test_what_is_in_the_way_of_whom() -> None:
    wanted = gangs((8, 1), (1, 8))
    assert planned(wanted, rack("a", 8)) == {0: "a"}
    # on a node that no large member may use they are in nobody's way
    assert planned(wanted, rack("a", 8, 4, 4)) == {0: "a", 1: "a"}
    # two places for leases on a node, of whatever size: one of 4 GPUs and one of 1 fit
    place = Place("a", [(1, {"4/0/0/True": 2, "1/0/0/True": 2})])
    assert len(planned(gangs((1, 4), (1, 1)), place)) == 2
    assert planned([], rack("a", 8)) == {}
    assert planned(gangs((2, 8))) == {}
    assert planned(gangs((2, 8)), rack("a", 8), rack("b", 8)) == {}


def test_members_of_several_kinds() -> None:
    wanted = Gang(gang_id=UUID(int=1), rank=0, needs=(need(1, 8), need(4, 1)))
    assert planned([wanted], rack("a", 8)) == {}
    assert planned([wanted], rack("a", 8, 3), rack("b", 8, 4)) == {1: "b"}


def test_what_takes_room_of_what() -> None:
    assert need(1, 8).units(need(1, 2)) == 4
    assert need(1, 2).units(need(1, 8)) == 0
    assert need(1, 2).units(need(1, 1, 400)) == 4  # two on each device
    assert need(1, 1, 400).units(need(1, 1)) == 0
    assert need(1, 1, 800).units(need(1, 1, 400)) == 2
    assert need(1, 8, cpu=3000).units(need(1, 2, cpu=2000)) == 1
    # what else it asks for is not known, so nothing is said
    assert need(1, 8).units(need(1, 2, is_plain=False)) == 0


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 3), st.sampled_from(GANG_SIZES)), min_size=1, max_size=5),
    st.lists(st.lists(st.sampled_from((0, 4, 8)), min_size=1, max_size=3), max_size=3),
)
def test_no_less_is_planned_than_can_be_placed(
    members: list[tuple[int, int]], racks: list[list[int]]
) -> None:
    """Of gangs behind the oldest: as the plan is a relaxation, it may be more."""
    wanted = gangs(*members)
    places = [rack(str(number), *free) for number, free in enumerate(racks)]
    plan = plan_gangs(wanted, places, seconds=10)
    assert plan.is_optimal
    first = wanted[0]
    fits = [left for free in racks if (left := filled(first, free)) is not None]
    if fits:
        behind = max(
            best(wanted[1:], [*racks[:at], left, *racks[at + 1 :]])
            for at, free in enumerate(racks)
            if (left := filled(first, free)) is not None
        )
        assert first.gang_id in {gang_id for gang_id, _ in plan.places}
        assert plan.devices >= first.weight + behind
    else:
        assert plan.devices >= best(wanted, racks)


@pytest.mark.parametrize("count", [1, 40])
def test_many_ranks(count: int) -> None:
    wanted = [each for n in range(count) for each in gangs((1, 8), rank=n, start=n)]
    found = planned(wanted, rack("a", *[8] * 5))
    assert sorted(found) == list(range(min(count, 5)))
