"""Marks of classes, behind a front that stands still; sql/queues/low_water.sql.

That no uncommitted spawn falls under one: test_low_water.
"""

from collections.abc import Sequence
from datetime import timedelta
from itertools import product
from uuid import UUID

import pytest

from hwqueue.testing import Clock
from tests.direct import Direct
from tests.patience import looks
from tests.races.cluster import prune
from tests.races.interleave import Actors
from tests.races.marks import FAR, NOWHERE, Line, position
from tests.races.terms import with_lease

_LOOKS_FOR_THEM = """
  select bool_or(version < blocked_to_version) from hwqueue.low_water where class_id = 0
"""
RED: dict[str, object] = {"labels": {"colour": "red"}}


def looks_for_them(direct: Direct) -> bool:
    """Whether claims look for marks of classes."""
    [(found,)] = direct.conn.execute(_LOOKS_FOR_THEM).fetchall()
    return bool(found)


def by_turns(line: Line, kinds: Sequence[dict[str, object]], rounds: int) -> list[UUID]:
    """Leases of all kinds in turn."""
    return [line.spawn(**kind) for _ in range(rounds) for kind in kinds]


@pytest.mark.parametrize("less", [[], [-5]], ids=["alone", "before others"])
def test_a_front_that_moves_needs_none(direct: Direct, line: Line, less: list[int]) -> None:
    """Nor does one that comes before leases of a lesser priority."""
    for priority in less:
        line.spawn(priority=priority)
    line.work(5)
    plain = line.class_of(line.work())
    line.settle_in()
    assert not looks_for_them(direct)
    assert line.marks_of(plain) == {}


@pytest.mark.parametrize("priority", [0, 5], ids=["same rank", "another rank"])
def test_a_front_that_stands(direct: Direct, line: Line, priority: int) -> None:
    """By position, or since it has a better rank than what is claimed for long."""
    stands = line.spawn(priority=priority, **NOWHERE)
    if priority == 0:
        direct.conn.execute(FAR)
    plain = line.class_of(line.work())
    line.work_past(position(direct, stands), plain)
    assert looks_for_them(direct)


def test_several_classes_and_ranks(direct: Direct) -> None:
    """Each class has a mark for each rank that was claimed; the order stays what it is."""
    line = Line(direct, stands=True)
    ranks = (3, 1, 0)
    kinds = [{"priority": priority, **kind} for kind, priority in product(({}, RED), ranks)]
    for _ in range(2):
        leases = by_turns(line, kinds, 6)
        asked = [kinds[n % len(kinds)] for n in range(len(leases))]
        in_order = sorted(range(len(leases)), key=lambda n: (-int(str(asked[n]["priority"])), n))
        assert line.take(len(leases) + 1) == [leases[n] for n in in_order]
    red = line.class_of(leases[3])
    for priority in ranks:
        line.work_past(line.last_position(), red, priority=priority, **RED)
    assert set(line.marks_of(red)) == {-3, -1, 0}


@pytest.mark.parametrize("ahead", [5, 2, 0])
def test_what_comes_before_the_marks(direct: Direct, ahead: int) -> None:
    """A new lease of a better rank than any mark, of one between two, and of the last one's."""
    line = Line(direct, stands=True)
    by_turns(line, [{"priority": 3}, {}], 6)
    line.take(12)
    line.settle_in(3, 0)
    late = line.spawn()
    first = line.spawn(priority=ahead)
    expected = [late, first] if ahead == 0 else [first, late]
    assert line.take(3) == expected


def test_a_retry_comes_back_behind_its_mark(direct: Direct) -> None:
    line = Line(direct, stands=True)
    line.spawn()
    claim = line.claim()
    line.settle_in()
    assert line.direct.fail(claim["lease_id"], claim["claim_token"]) == "pending"
    younger = line.spawn()
    assert line.take(3) == [claim["lease_id"], younger]


def test_a_lease_with_a_class_of_its_own(direct: Direct) -> None:
    """It may get an entry in its old place (assign_target_class), so its class has no marks."""
    line = Line(direct, stands=True)
    named = line.spawn()
    away = with_lease(named, away=True)
    direct.conn.execute(FAR)
    line.spawn(**away)
    line.direct.settle_terms()
    own = line.class_of(named)
    assert own != line.class_of(line.spawn())
    assert line.claim()["lease_id"] == named
    line.work(6)
    assert line.marks_of(own) == {}


def test_claims_that_ask_for_many_and_get_one_move_marks(line: Line) -> None:
    """One of the leases that are granted does it, however many were asked for."""
    for _ in looks():
        before = line.versions()
        for _ in range(20):
            line.spawn()
            [claim] = line.direct.claim(line.queue, *line.node, qty=1000)
            line.direct.complete(claim["lease_id"], claim["claim_token"])
        if line.versions() >= before + 10:
            return
    raise AssertionError(f"the marks are still {line.marks()}")


def test_two_sessions_write_the_first_mark(direct: Direct, actor: Actors) -> None:
    """One has the queue's marks; the other goes without, and waits for nobody."""
    line = Line(direct, stands=True)
    other = Line(direct, "elsewhere", name="other").node
    line.settle_in()
    leases = by_turns(line, [RED], 6)
    red = line.class_of(leases[0])
    idle = actor().begin()
    [held] = idle.direct.claim(line.queue, *other)
    assert line.take(2) == leases[1:3]
    assert line.marks_of(red) == {}
    idle.rollback()
    assert held["lease_id"] == leases[0]
    assert line.take(6) == [leases[0], *leases[3:]]


def test_the_front_moves_again(direct: Direct) -> None:
    """After some hundred claims nobody looks for marks of classes; old ones hide nothing."""
    line = Line(direct, stands=True)
    line.settle_in()
    assert line.direct.cancel(line.front()) == "cancelled"
    line.skip_versions(250)  # of 256
    line.work_until(lambda: not looks_for_them(direct))
    stands = line.spawn(**NOWHERE)
    direct.conn.execute(FAR)
    leases = by_turns(line, [{}, RED], 4)
    assert line.take(9) == leases
    assert looks_for_them(direct)
    assert line.front() == stands


def test_a_class_takes_its_marks_along(direct: Direct, clock: Clock) -> None:
    """When prune deletes it."""
    line = Line(direct, stands=True)
    red = line.class_of(line.work(labels=RED["labels"]))
    line.work_past(0, red, **RED)
    clock.advance(timedelta(days=365))
    prune(direct, 6)
    assert line.marks_of(red) == {}
