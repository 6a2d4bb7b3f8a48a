"""release_lease: handed back unfinished, no attempt used."""

from datetime import timedelta

from hwqueue.testing import Clock
from tests.sql.api import Api, refusing, token


def test_no_attempt_is_used(api: Api) -> None:
    queue, node = api.queue(max_attempts=1), api.node()
    claim = api.running(queue, node)
    for _ in range(3):
        assert api.value("release_lease", **token(claim)) == "pending"
        [again] = api.claim(node, queue)
        assert (again["lease_id"], again["attempt"]) == (claim["lease_id"], 1)
        assert again["claim_token"] > claim["claim_token"]
        claim = again
    assert [a["outcome"] for a in api.lease(claim["lease_id"])["attempts"]] == ["released"] * 3


def test_attempts_used_before_stay_used(api: Api) -> None:
    queue, node = api.queue(retry={"kind": "fixed", "base": 0}), api.node()
    claim = api.running(queue, node)
    api.rows("fail_lease", **token(claim), error={})
    [claim] = api.claim(node, queue)
    api.rows("release_lease", **token(claim))
    [claim] = api.claim(node, queue)
    assert claim["attempt"] == 2


def test_later(api: Api, clock: Clock) -> None:
    queue, node = api.queue(), api.node()
    claim = api.running(queue, node)
    delay = timedelta(seconds=30)
    assert api.value("release_lease", **token(claim), delay=delay) == "scheduled"
    assert api.lease(claim["lease_id"])["available_at"] == clock.now() + delay
    assert api.claim(node, queue) == []
    clock.advance(delay)
    assert api.claimed(node, queue) == [claim["lease_id"]]


def test_one_that_is_put_off_past_its_deadline_fails_and_an_event_says_so(api: Api, clock: Clock) -> None:
    node, minute = api.node(), timedelta(minutes=1)
    deadline = (clock.now() + minute).isoformat()
    claim = api.running(api.queue(), node, deadline=deadline)
    assert api.value("release_lease", **token(claim), delay=timedelta(days=1)) == "scheduled"
    api.rows("reap")
    assert api.state(claim["lease_id"]) == "scheduled"
    clock.advance(minute)
    api.rows("reap")
    lease = api.lease(claim["lease_id"])
    assert (lease["state"], lease["error"]["reason"]) == ("failed", "deadline_exceeded")
    [event] = api.rows("list_events", filter={"lease": str(claim["lease_id"])})
    assert event["code"] == "lease_deadline_exceeded"


def test_asked_to_stop_it_is_cancelled(api: Api) -> None:
    claim = api.running(api.queue())
    api.rows("cancel_lease", lease=claim["lease_id"], reason="no need")
    assert api.value("release_lease", **token(claim)) == "cancelled"
    assert api.lease(claim["lease_id"])["error"] == {"reason": "cancelled", "detail": "no need"}


def test_never(api: Api) -> None:
    """There is no infinite span; before Postgres 17, not even for Postgres."""
    claim = api.running(api.queue())
    knows_infinity = api.conn.info.server_version >= 170000
    with refusing("QHA01" if knows_infinity else "22007"):
        api.rows("release_lease", **token(claim), delay="infinity")
    assert api.state(claim["lease_id"]) == "claimed"
