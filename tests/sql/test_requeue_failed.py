"""requeue_failed: many at once, by what they were and when they died."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from hwqueue.testing import Clock
from tests.calls import TASK
from tests.sql.api import Api, token


def dead(api: Api, queue: str, task: str = TASK) -> UUID:
    """A lease that has failed for good."""
    lease = api.spawn(queue, task)
    [claim] = api.claim(api.node(), queue)
    api.rows("fail_lease", **token(claim), error={}, retry=False)
    return lease


def test_the_failed_and_no_others(api: Api) -> None:
    queue, other = api.queue(), api.queue()
    leases, elsewhere = [dead(api, queue), dead(api, queue)], dead(api, other)
    cancelled = api.spawn(queue)
    api.rows("cancel_lease", lease=cancelled)
    assert api.value("requeue_failed", queue=queue) == 2
    assert [api.state(lease) for lease in leases] == ["pending", "pending"]
    assert (api.state(cancelled), api.state(elsewhere)) == ("cancelled", "failed")
    assert api.value("requeue_failed", queue=queue) == 0


def test_filters(api: Api, clock: Clock) -> None:
    queue = api.queue()
    died = []
    for task in ("a", "b", "a"):
        died.append((dead(api, queue, task), clock.now().isoformat()))
        clock.advance(timedelta(minutes=1))

    def requeued(**filters: Any) -> list[bool]:
        """Which of the three come back; all are dead again afterwards."""
        api.rows("requeue_failed", queue=queue, filter=filters)
        alive = [api.state(lease) == "pending" for lease, _ in died]
        for claim in api.claim(api.node(), queue, qty=3):
            api.rows("fail_lease", **token(claim), error={}, retry=False)
        return alive

    assert requeued(task="a", limit=1) == [True, False, False]
    # the first died anew just now, the others when they did
    assert requeued(until=died[1][1]) == [False, True, False]
    assert requeued(since=clock.now().isoformat(), task="b") == [False, True, False]
    assert requeued(task="a") == [True, False, True]
    assert requeued(since=(clock.now() + timedelta(seconds=1)).isoformat()) == [False] * 3


def test_the_oldest_come_first(api: Api, clock: Clock) -> None:
    queue = api.queue()
    leases = []
    for _ in range(3):
        leases.append(dead(api, queue))
        clock.advance(timedelta(seconds=1))
    assert api.value("requeue_failed", queue=queue, filter={"limit": 2}) == 2
    assert [api.state(lease) for lease in leases] == ["pending", "pending", "failed"]


@pytest.mark.parametrize(
    ("field", "filters"),
    [
        ("filter", []),
        ("filter.state", {"state": "failed"}),
        ("filter.task", {"task": 1}),
        ("filter.since", {"since": "yesterday"}),
        ("filter.until", {"until": True}),
        ("filter.limit", {"limit": 0}),
    ],
)
@pytest.mark.thorough
def test_bad_filters(api: Api, field: str, filters: Any) -> None:
    refusal = api.refused("QHA01", "requeue_failed", queue=api.queue(), filter=filters)
    assert refusal.field == field


def test_unknown_queue(api: Api) -> None:
    assert api.refused("QHQ01", "requeue_failed", queue="nowhere").detail["queue"] == "nowhere"
