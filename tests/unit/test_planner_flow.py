"""Nodes for single leases, chosen together, against all choices of small worlds."""

from collections.abc import Iterator, Mapping, Sequence
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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
