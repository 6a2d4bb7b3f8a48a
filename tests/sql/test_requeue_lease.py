"""requeue_lease and requeue_failed: attempts anew for what has ended; release_lease: none is used up."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from hwqueue.testing import Clock
from tests.calls import TASK
from tests.sql.api import NOBODY, Api, Node, refusing, token


def test_a_dead_lease_lives_again(api: Api) -> None:
    queue, node = api.queue(max_attempts=1), api.node()
    old = api.running(queue, node)
    api.rows("fail_lease", **token(old), error={"n": 1})
    assert api.value("requeue_lease", lease=old["lease_id"]) == "pending"
    row = api.lease(old["lease_id"])
    assert (row["attempt"], row["finished_at"], row["error"]) == (0, None, None)
    [new] = api.claim(node, queue)
    assert (new["lease_id"], new["attempt"]) == (old["lease_id"], 1)
    assert new["claim_token"] == old["claim_token"] + 3
    api.refused("QHL01", "complete_lease", **token(old))
    api.rows("fail_lease", **token(new), error={"n": 2})
    row = api.lease(old["lease_id"])
    assert [(a["attempt"], a["error"]) for a in row["attempts"]] == [(1, {"n": 1}), (1, {"n": 2})]


def test_a_cancelled_lease_lives_again(api: Api, queue: str, node: Node, conn: psycopg.Connection) -> None:
    """And wakes those who wait."""
    lease = api.spawn(queue)
    api.rows("cancel_lease", lease=lease)
    assert api.claim(node, queue) == []
    conn.execute("listen hwqueue")
    assert api.value("requeue_lease", lease=lease) == "pending"
    assert [notify.payload for notify in conn.notifies(timeout=0)] == [api.wake_payload(queue)]
    assert api.claimed(node, queue) == [lease]


def test_its_last_claim_stays_known(api: Api) -> None:
    """Also over a second end, without a claim: old tokens are lost, and none is granted again."""
    queue, node = api.queue(max_attempts=1), api.node()
    old = api.running(queue, node)
    api.rows("fail_lease", **token(old), error={})
    last = ("node_id", "claim_token", "claimed_at")
    before = [api.lease(old["lease_id"])[name] for name in last]
    assert before[:2] == [node.node_id, old["claim_token"]]
    for state in ("pending", "cancelled", "pending"):
        api.rows("cancel_lease" if state == "cancelled" else "requeue_lease", lease=old["lease_id"])
        row = api.lease(old["lease_id"])
        assert (row["state"], [row[name] for name in last]) == (state, before)
        lost = "QHL02" if state == "cancelled" else "QHL01"
        api.refused(lost, "complete_lease", **token(old))
    [new] = api.claim(node, queue)
    assert new["claim_token"] == old["claim_token"] + 3


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_deadline_that_has_passed_is_dropped(api: Api, clock: Clock, hours: int) -> None:
    lease = api.spawn(api.queue(), deadline=(clock.now() + timedelta(hours=2)).isoformat())
    api.rows("cancel_lease", lease=lease)
    clock.advance(timedelta(hours=2 - hours))
    api.rows("requeue_lease", lease=lease)
    assert (api.lease(lease)["deadline"] is None) == (hours < 0)


def test_others_cannot_be_requeued(api: Api, queue: str) -> None:
    done = api.running(queue)
    api.complete(done)
    claimed = api.running(queue)["lease_id"]
    for code, state, lease in (
        ("QHL03", "completed", done["lease_id"]),
        ("QHL07", "claimed", claimed),
        ("QHL07", "pending", api.spawn(queue)),
        ("QHL07", "scheduled", api.spawn(queue, delay=60)),
    ):
        refusal = api.refused(code, "requeue_lease", lease=lease)
        assert refusal.detail == {"lease_id": str(lease), "state": state}
    assert api.refused("QHL04", "requeue_lease", lease=NOBODY).detail["lease_id"] == str(NOBODY)


def dead(api: Api, queue: str, task: str = TASK) -> UUID:
    lease = api.spawn(queue, task)
    [claim] = api.claim(api.node(), queue)
    api.rows("fail_lease", **token(claim), error={}, retry=False)
    return lease


def test_the_failed_and_no_others_the_oldest_first(api: Api, clock: Clock) -> None:
    queue, other = api.queue(), api.queue()
    leases, elsewhere = [], dead(api, other)
    for _ in range(3):
        leases.append(dead(api, queue))
        clock.advance(timedelta(seconds=1))
    cancelled = api.spawn(queue)
    api.rows("cancel_lease", lease=cancelled)
    assert api.value("requeue_failed", queue=queue, filter={"limit": 2}) == 2
    assert [api.state(lease) for lease in leases] == ["pending", "pending", "failed"]
    assert api.value("requeue_failed", queue=queue) == 1
    assert [api.state(lease) for lease in leases] == ["pending"] * 3
    assert (api.state(cancelled), api.state(elsewhere)) == ("cancelled", "failed")
    assert api.value("requeue_failed", queue=queue) == 0


def test_filters_of_requeue_failed(api: Api, queue: str, clock: Clock) -> None:
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


@pytest.mark.thorough
def test_bad_arguments_of_requeue_failed(api: Api, queue: str) -> None:
    bad: dict[str, Any] = {"state": "failed", "task": 1, "since": "yesterday", "until": True, "limit": 0}
    for key, value in bad.items():
        refusal = api.refused("QHA01", "requeue_failed", queue=queue, filter={key: value})
        assert refusal.field == f"filter.{key}"
    assert api.refused("QHA01", "requeue_failed", queue=queue, filter=[]).field == "filter"
    assert api.refused("QHQ01", "requeue_failed", queue="nowhere").detail["queue"] == "nowhere"


def test_a_release_uses_no_attempt(api: Api) -> None:
    """Those that were used before stay used."""
    queue, node = api.queue(max_attempts=2, retry={"kind": "fixed", "base": 0}), api.node()
    claim = api.running(queue, node)
    api.rows("fail_lease", **token(claim), error={})
    [claim] = api.claim(node, queue)
    for _ in range(3):
        assert api.value("release_lease", **token(claim)) == "pending"
        [again] = api.claim(node, queue)
        assert (again["lease_id"], again["attempt"]) == (claim["lease_id"], 2)
        assert again["claim_token"] > claim["claim_token"]
        claim = again
    outcomes = [a["outcome"] for a in api.lease(claim["lease_id"])["attempts"]]
    assert outcomes == ["failed", "released", "released", "released"]


def test_one_that_is_put_off_past_its_deadline_fails_and_an_event_says_so(api: Api, clock: Clock) -> None:
    node, minute = api.node(), timedelta(minutes=1)
    deadline = (clock.now() + minute).isoformat()
    claim = api.running(api.queue(), node, deadline=deadline)
    assert api.value("release_lease", **token(claim), delay=timedelta(days=1)) == "scheduled"
    api.rows("reap")
    assert api.state(claim["lease_id"]) == "scheduled"
    api.reap_after(clock, minute)
    lease = api.lease(claim["lease_id"])
    assert (lease["state"], lease["error"]["reason"]) == ("failed", "deadline_exceeded")
    [event] = api.rows("list_events", filter={"lease": str(claim["lease_id"])})
    assert event["code"] == "lease_deadline_exceeded"


def test_released_when_asked_to_stop_it_is_cancelled(api: Api) -> None:
    claim = api.running(api.queue())
    api.rows("cancel_lease", lease=claim["lease_id"], reason="no need")
    assert api.value("release_lease", **token(claim)) == "cancelled"
    assert api.lease(claim["lease_id"])["error"] == {"reason": "cancelled", "detail": "no need"}


def test_released_for_later(api: Api, queue: str, node: Node, clock: Clock) -> None:
    """There is no infinite span; before Postgres 17, not even for Postgres."""
    claim = api.running(queue, node)
    with refusing("QHA01" if api.conn.info.server_version >= 170000 else "22007"):
        api.rows("release_lease", **token(claim), delay="infinity")
    assert api.state(claim["lease_id"]) == "claimed"
    delay = timedelta(seconds=30)
    assert api.value("release_lease", **token(claim), delay=delay) == "scheduled"
    assert api.lease(claim["lease_id"])["available_at"] == clock.now() + delay
    assert api.claim(node, queue) == []
    clock.advance(delay)
    assert api.claimed(node, queue) == [claim["lease_id"]]
