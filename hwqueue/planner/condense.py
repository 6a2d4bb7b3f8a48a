"""Fewer pools than there are: kinds of nodes that suit much the same leases count as one.

The program has a row for each pool and each amount of room that devices have left there, and it is
solved dozens of times in a round. With hundreds of kinds of nodes that takes minutes. What a queue
gets is one curve in the end, the mean over its pools, so little is lost where kinds are put
together before instead of after.

A lease that suits one of the kinds that are put together suits all of them here. That loosens the
program: no assignment to nodes exceeds its bound.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from hwqueue.planner.model import Demand, Pool, alike_as_one
from hwqueue.planner.program import EXACT, Program, Solution

MOST_POOLS = 32


def solve_condensed(
    pools: Sequence[Pool],
    demands: Sequence[Demand],
    *,
    most: int = MOST_POOLS,
    exact: float = EXACT,
    seconds: float,
) -> Solution:
    """Solve the program with at most `most` pools; the curves are those of all pools.

    Raises: RuntimeError, where GLOP finds no solution.
    """
    groups = grouped(pools, demands, most)
    number_of = {pool: number for number, group in enumerate(groups) for pool in group}
    found = Program(
        [_together([pools[pool] for pool in group]) for group in groups], _merged(demands, number_of)
    ).solve(exact=exact, seconds=seconds)
    curves = [found.curves[number_of[pool]] for pool in range(len(pools))]
    return replace(found, curves=curves)


def grouped(pools: Sequence[Pool], demands: Sequence[Demand], most: int) -> list[list[int]]:
    """The numbers of the pools in at most `most` groups: those that suit much the same together.

    Pools are ordered by which of the demands they suit, that of most devices first, and cut where
    as many devices have gone by as make a group. Pools that count cpu and memory are never with
    those that do not.
    """
    if len(pools) <= most:
        return [[pool] for pool in range(len(pools))]
    suits: list[list[int]] = [[] for _ in pools]
    ordered = sorted(demands, key=lambda demand: -demand.count * demand.devices)
    for turn, demand in enumerate(ordered):
        for pool in demand.pools:
            suits[pool].append(turn)
    kinds: dict[tuple[bool, bool], list[int]] = {}
    for number, each in enumerate(pools):
        kinds.setdefault((each.cpu_milli is None, each.memory_mib is None), []).append(number)
    total = sum(1 + pool.devices_with_room for pool in pools)
    # each kind ends with a group that may be small
    limit = total / max(1, most - len(kinds))
    groups: list[list[int]] = []
    for numbers in kinds.values():
        gone = 0
        groups.append([])
        for number in sorted(numbers, key=lambda number: suits[number]):
            if gone >= limit:
                gone -= int(limit)
                groups.append([])
            groups[-1].append(number)
            gone += 1 + pools[number].devices_with_room
    return groups


def _together(pools: Sequence[Pool]) -> Pool:
    free: Counter[int] = Counter()
    for pool in pools:
        free.update(pool.free)
    return Pool(
        cpu_milli=_sum([pool.cpu_milli for pool in pools]),
        memory_mib=_sum([pool.memory_mib for pool in pools]),
        free=free,
    )


def _sum(amounts: Sequence[int | None]) -> int | None:
    counted = [amount for amount in amounts if amount is not None]
    return sum(counted) if len(counted) == len(amounts) else None


def _merged(demands: Sequence[Demand], number_of: dict[int, int]) -> list[Demand]:
    """The demands with the numbers of groups; those that ask for the same as one."""
    return alike_as_one(
        replace(each, pools=tuple(sorted({number_of[pool] for pool in each.pools}))) for each in demands
    )
