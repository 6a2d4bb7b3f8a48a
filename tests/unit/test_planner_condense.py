"""Kinds of nodes put together: what the program says of all of them, in less time."""

import pytest

from hwqueue.planner.condense import grouped, solve_condensed
from hwqueue.planner.model import Demand, Pool
from hwqueue.planner.program import Program
from lab.planner.made_up import Fleet

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
