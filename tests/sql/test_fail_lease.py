"""fail_lease: again by the retry policy while attempts are left, else dead and kept."""

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from hwqueue.testing import Clock
from tests.calls import Row
from tests.sql.api import Api, token

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
