"""Places for gangs, chosen together, against all choices of small worlds."""

from collections.abc import Sequence
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hwqueue.planner.gangs import Gang, Need, Place, plan_gangs

SIZES = (1, 2, 4, 8)


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
    rooms = [(1, {f"{size}/0/0/True": gpus // size for size in SIZES}) for gpus in free]
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
    st.lists(st.tuples(st.integers(1, 3), st.sampled_from(SIZES)), min_size=1, max_size=5),
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
