"""The configuration program against what small cases can be enumerated for."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ortools.linear_solver import pywraplp

from hwqueue.planner.model import Demand, Pool
from hwqueue.planner.program import POINTS, Knapsack, Program, mean_curve

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
