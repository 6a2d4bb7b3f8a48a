"""Whatever becomes claimable after the low-water marks have passed it is claimed, and in order."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from psycopg.types.json import Jsonb

from hwqueue.testing import Clock
from tests.direct import Direct
from tests.races.cluster import Node
from tests.races.marks import Line, position

ELSEWHERE = {"placement": {"require": [{"label": "zone", "op": "exists"}]}}
MOST_MARKS = 16


def passed(line: Line, before: int, *priorities: int) -> None:
    """Let the marks of these priorities go past what has been drawn by now."""
    for priority in priorities or (0,):
        line.work_past(before, priority=priority)


def claimed(line: Line) -> Node:
    """A lease that runs while marks pass the place that it had."""
    line.spawn()
    row = line.claim()
    passed(line, line.last_position())
    return row["lease_id"], row["claim_token"]


def retry(line: Line, clock: Clock) -> UUID:
    """It fails and is tried again at once."""
    lease, token = claimed(line)
    assert line.direct.fail(lease, token) == "pending"
    return lease


def release(line: Line, clock: Clock) -> UUID:
    """Its worker hands it back."""
    lease, token = claimed(line)
    assert line.direct.release(lease, token) == "pending"
    return lease


def expiry(line: Line, clock: Clock) -> UUID:
    """Its claim runs out and is reaped."""
    lease, _ = claimed(line)
    clock.advance(timedelta(hours=1))
    assert line.direct.reap()["expired"] == 1
    return lease


def requeue(line: Line, clock: Clock) -> UUID:
    """It failed for good; an operator gives it another chance."""
    lease, token = claimed(line)
    line.direct.fail(lease, token, retry=False)
    passed(line, line.last_position())
    assert line.direct.requeue(lease) == "pending"
    return lease


def due(line: Line, clock: Clock) -> UUID:
    """It was spawned for later, and its time comes."""
    lease = line.spawn(delay=60)
    passed(line, line.last_position())
    clock.advance(timedelta(minutes=2))
    assert line.direct.reap()["promoted"] == 1
    return lease


def new_priority(line: Line, clock: Clock) -> UUID:
    """It waits for another kind of node in a lane of its own, and is moved to a lane at work."""
    return changed(line, line.spawn(priority=7, **ELSEWHERE), {"priority": 0, "placement": {}})


def new_placement(line: Line, clock: Clock) -> UUID:
    """It waits for another kind of node at the head of the lane, until any node will do."""
    return changed(line, line.spawn(**ELSEWHERE), {"placement": {}})


def changed(line: Line, lease: UUID, changes: Mapping[str, Any]) -> UUID:
    """Change a lease that waits, after others have come and gone."""
    at = position(line.direct, lease)
    line.work(20)
    assert line.marks()[0] <= at or "priority" in changes
    line.conn.execute("select hwqueue.update_lease(p_lease => %s, p_changes => %s)", [lease, Jsonb(changes)])
    return lease


WAYS = [retry, release, expiry, requeue, due, new_priority, new_placement]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("capacity", [{}, {"cpu_milli": 4000}], ids=["plain", "counted"])
def test_it_comes_back_behind_the_marks(
    direct: Direct, clock: Clock, way: Callable[[Line, Clock], UUID], capacity: dict[str, int]
) -> None:
    """It is next in line: before all that was spawned after it came back."""
    clock.freeze()
    line = Line(direct, capacity=capacity)
    line.settle_in()
    lease = way(line, clock)
    younger = [line.spawn() for _ in range(3)]
    assert line.take(5) == [lease, *younger]


def test_priorities_rise_and_fall(line: Line) -> None:
    """Each lane has a mark of its own; a lane that is new has none."""
    line.settle_in(0, 5, -5)
    for turn in ((0, 9, 5), (5, -5, 0), (-9, 0, 9), (-5, -9, 5), (1, -1, 0)):
        leases = {priority: line.spawn(priority=priority) for priority in turn}
        leases |= {priority + 100: line.spawn(priority=priority) for priority in turn}
        expected = [leases[key] for lane in sorted(turn, reverse=True) for key in (lane, lane + 100)]
        assert line.take(7) == expected
        line.work(5, priority=turn[0])


def test_more_lanes_than_marks(line: Line) -> None:
    """The oldest marks go; their lanes are read from the start."""
    priorities = range(-10, 10)
    for _ in range(3):
        for priority in priorities:
            line.work(2, priority=priority)
        leases = {priority: line.spawn(priority=priority) for priority in priorities}
        expected = [leases[priority] for priority in reversed(priorities)]
        assert line.take(len(leases)) == expected
    assert 1 < len(line.marks()) <= MOST_MARKS


def test_a_mark_that_nobody_moves_goes(line: Line) -> None:
    """Or queues with an ageing step would keep 16 marks of ranks that never come again."""
    line.settle_in(5)
    line.settle_in(0)
    assert set(line.marks()) == {0, -5}
    line.skip_versions(250)  # of 256
    assert set(line.marks()) == {0, -5}
    line.work_until(lambda: set(line.marks()) == {0})
    urgent, usual = line.spawn(priority=5), line.spawn()
    assert line.take(2) == [urgent, usual]


def test_queues_have_marks_of_their_own(direct: Direct) -> None:
    """What comes to one queue has nothing to do with how far another one is."""
    busy = Line(direct)
    quiet = Line(direct, "quiet", name="other")
    waiting = [quiet.spawn() for _ in range(3)]
    assert quiet.take(1) == waiting[:1]
    busy.settle_in()
    fresh = busy.spawn()
    both = direct.conn.execute(
        "select lease_id from hwqueue.claim_task(p_queues => %s, p_node => %s, p_epoch => %s, p_qty => 3)",
        [[busy.queue, quiet.queue], *busy.node],
    )
    assert [lease for (lease,) in both] == [*waiting[1:], fresh]
