"""Leases that fail, are cancelled, released and requeued."""

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from hwqueue.testing import Clock
from tests.calls import TASK, Row
from tests.sql.api import NOBODY, Api, Node, refusing, token

STEADY = {"kind": "fixed", "base": 30, "jitter": 0}


def fail_again(api: Api, clock: Clock, queue: str, lease: UUID, **more: Any) -> timedelta:
    """Claim the lease and fail it; how long it then waits."""
    wait = max(timedelta(0), api.lease(lease)["available_at"] - clock.now())
    clock.advance(wait)
    claim = api.granted(lease, api.node(), queue)
    api.rows("fail_lease", **token(claim), error={"n": claim["attempt"]}, **more)
    available: datetime = api.lease(lease)["available_at"]
    return available - clock.now()


def waits(api: Api, clock: Clock, times: int, retry: Row) -> list[float]:
    """How many seconds a lease waits after each of its attempts."""
    queue = api.queue(max_attempts=1000)
    lease = api.spawn(queue, retry=retry)
    return [fail_again(api, clock, queue, lease).total_seconds() for _ in range(times)]


def test_fixed_and_exponential_up_to_a_cap(api: Api, clock: Clock) -> None:
    assert waits(api, clock, 3, STEADY) == [30, 30, 30]
    assert waits(api, clock, 1, STEADY | {"max": 7}) == [7]
    retry = {"kind": "exponential", "base": 5, "factor": 3, "max": 100, "jitter": 0}
    assert waits(api, clock, 5, retry) == [5, 15, 45, 100, 100]


def test_the_default_policy(api: Api, clock: Clock) -> None:
    """Exponential, 5 s x 2 up to 10 min, less up to a fifth; jitter stays within its bounds."""
    expected = [5, 10, 20, 40, 80, 160, 320, 600, 600]
    for got, most in zip(waits(api, clock, 9, {}), expected, strict=True):
        assert 0.8 * most <= got <= most
    jittered = waits(api, clock, 20, STEADY | {"jitter": 0.5})
    assert all(15 <= seconds <= 30 for seconds in jittered)
    assert len(set(jittered)) > 10


def test_a_wait_is_scheduled(api: Api, clock: Clock) -> None:
    """One of no time is none."""
    queue = api.queue(retry={"kind": "fixed", "base": 0})
    claim = api.running(queue)
    assert api.value("fail_lease", **token(claim), error={}) == "pending"
    assert api.claimed(api.node(), queue) == [claim["lease_id"]]
    queue = api.queue(retry=STEADY)
    claim = api.running(queue)
    assert api.value("fail_lease", **token(claim), error={}) == "scheduled"
    node = api.node()
    clock.advance(timedelta(seconds=29))
    assert api.claim(node, queue) == []
    clock.advance(timedelta(seconds=1))
    [again] = api.claim(node, queue)
    assert (again["lease_id"], again["attempt"]) == (claim["lease_id"], 2)
    assert again["claim_token"] > claim["claim_token"]


def test_dead(api: Api, clock: Clock) -> None:
    """No attempt is left, or the worker gives up; to say when gives no attempt more."""
    node, later = api.node(), {"retry_at": clock.now() + timedelta(hours=1)}
    last: list[Row] = [{"max_attempts": 1}, {"retry": {"kind": "none"}}]
    cases: list[tuple[Row, Row]] = [(options, more) for options in last for more in ({}, later)]
    for options, more in [({}, {"retry": False}), *cases]:
        claim = api.running(api.queue(), node, **options)
        assert api.value("fail_lease", **token(claim), error={"code": 7}, **more) == "failed"
        lease = api.lease(claim["lease_id"])
        assert (lease["state"], lease["attempt"], lease["error"]) == ("failed", 1, {"code": 7})
        assert (lease["finished_at"], lease["node_id"]) == (clock.now(), node.node_id)
        assert api.claim(node, lease["queue"]) == []


def test_the_worker_may_say_when(api: Api, clock: Clock) -> None:
    queue = api.queue(max_attempts=3, retry=STEADY)
    lease, at = api.spawn(queue), timedelta(hours=2)
    assert fail_again(api, clock, queue, lease, retry_at=clock.now() + at) == at
    before = clock.now()
    assert fail_again(api, clock, queue, lease, retry_at=before) <= timedelta(0)
    assert api.state(lease) == "pending"
    claim = api.running(api.queue(max_attempts=1))
    for never in ("infinity", "-infinity"):  # a time is a time
        api.refused("QHA01", "fail_lease", **token(claim), error={}, retry_at=never)
    assert api.value("fail_lease", **token(claim), error=None) == "failed"
    assert api.lease(claim["lease_id"])["attempts"][0]["error"] is None


def test_every_attempt_is_kept_with_its_error(api: Api, clock: Clock) -> None:
    queue = api.queue(retry=STEADY)
    lease = api.spawn(queue, max_attempts=3)
    for _ in range(3):
        fail_again(api, clock, queue, lease)
    row = api.lease(lease)
    assert (row["state"], row["error"]) == ("failed", {"n": 3})
    kept = [(a["attempt"], a["outcome"], a["error"]) for a in row["attempts"]]
    assert kept == [(n, "failed", {"n": n}) for n in (1, 2, 3)]
    tokens = [a["claim_token"] for a in row["attempts"]]
    assert tokens == sorted(set(tokens))
    assert all(a["node_id"] and a["claimed_at"] and a["ended_at"] for a in row["attempts"])


def test_asked_to_stop_it_is_cancelled(api: Api) -> None:
    claim = api.running(api.queue())
    api.rows("cancel_lease", lease=claim["lease_id"], reason="no need")
    assert api.value("fail_lease", **token(claim), error={"message": "stopped"}) == "cancelled"
    lease = api.lease(claim["lease_id"])
    assert (lease["state"], lease["error"]) == ("cancelled", {"message": "stopped"})
    assert [a["outcome"] for a in lease["attempts"]] == ["cancelled"]


@pytest.mark.parametrize("delay", [0, 60])
def test_a_waiting_lease_is_cancelled_at_once(api: Api, queue: str, clock: Clock, delay: int) -> None:
    lease = api.spawn(queue, delay=delay)
    assert api.value("cancel_lease", lease=lease, reason="no need") == "cancelled"
    with api.unchanged():  # twice is once
        assert api.value("cancel_lease", lease=lease) == "cancelled"
    row = api.lease(lease)
    assert (row["state"], row["finished_at"]) == ("cancelled", clock.now())
    assert row["error"] == {"reason": "cancelled", "detail": "no need"}
    clock.advance(timedelta(seconds=61))
    assert api.claim(api.node(), queue) == []


def test_a_running_lease_is_asked_to_stop(api: Api) -> None:
    """And counts until it has stopped."""
    queue, node = api.queue(), api.node(slots=1)
    claim, other = api.running(queue, node), api.spawn(queue)
    assert api.value("cancel_lease", lease=claim["lease_id"]) == "claimed"
    with api.unchanged():  # twice is once
        assert api.value("cancel_lease", lease=claim["lease_id"]) == "claimed"
    row = api.lease(claim["lease_id"])
    assert (row["state"], row["stop_reason"]) == ("claimed", "cancelled")
    assert api.verdicts(node, claim) == ["cancelled"]
    assert api.claim(node, queue) == []
    assert api.value("release_lease", **token(claim)) == "cancelled"
    assert api.lease(claim["lease_id"])["attempt"] == 1
    assert api.claimed(node, queue) == [other]
    assert api.claim(node, queue) == []


EARLIER = "hwqueue.clock() - interval '1 s') from hwqueue.claim c where lease_id = %s"


@pytest.mark.parametrize(
    "stop",
    [
        f"select hwqueue.ask_to_stop(c.node_id, array[c.lease_id], null, 'drained', {EARLIER}",
        f"select hwqueue.set_stops(n, array[c.lease_id], {EARLIER}",
    ],
)
def test_an_operator_who_read_the_clock_before_does_not_undo_it(api: Api, stop: str) -> None:
    """A drain that waited for another claim of the node meets a claim cancelled since."""
    claim = api.running(api.queue())
    api.rows("cancel_lease", lease=claim["lease_id"])
    named = stop.replace("hwqueue.claim c", "hwqueue.claim c join hwqueue.node n using (node_id)")
    api.conn.execute(named.encode(), [claim["lease_id"]])
    assert api.lease(claim["lease_id"])["stop_reason"] == "cancelled"
    assert api.value("release_lease", **token(claim)) == "cancelled"


def test_one_that_never_stops_is_cancelled_when_it_expires(api: Api, clock: Clock) -> None:
    claim = api.running(api.queue(claim_timeout=60))
    api.rows("cancel_lease", lease=claim["lease_id"], reason="no need")
    api.reap_after(clock, timedelta(seconds=61))
    row = api.lease(claim["lease_id"])
    assert (row["state"], [a["outcome"] for a in row["attempts"]]) == ("cancelled", ["cancelled"])
    node = api.node()
    claim = api.running(api.queue(), node)  # preempted, and then cancelled
    api.rows("drain_node", node=node.node_id, deadline=timedelta(minutes=1))
    assert api.value("cancel_lease", lease=claim["lease_id"]) == "claimed"
    assert api.value("release_lease", **token(claim)) == "cancelled"


def test_what_cannot_be_cancelled(api: Api) -> None:
    """What has ended, no lease, and for a reason that is too long."""
    done, dead = api.running(api.queue()), api.running(api.queue())
    api.complete(done)
    api.rows("fail_lease", **token(dead), error={}, retry=False)
    for claim, state in ((done, "completed"), (dead, "failed")):
        refusal = api.refused("QHL03", "cancel_lease", lease=claim["lease_id"])
        assert refusal.detail == {"lease_id": str(claim["lease_id"]), "state": state}
    for lease in (NOBODY, None):
        refusal = api.refused("QHL04", "cancel_lease", lease=lease)
        assert refusal.detail.get("lease_id") == (str(lease) if lease else None)
    lease = api.spawn(api.queue())
    assert api.fault("cancel_lease", lease=lease, reason="x" * 1024) == "p_reason"


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
