"""reap: what nobody settles comes back, what is due becomes claimable, what is late fails."""

from datetime import datetime, timedelta
from uuid import UUID

import psycopg
import pytest

from hwqueue.testing import Clock
from tests.sql.api import Api, beat

MINUTE = timedelta(minutes=1)


@pytest.fixture(autouse=True)
def _nothing_left(api: Api, clock: Clock) -> None:
    """reap looks at the whole shard: leave nothing to it from the test before."""
    clock.advance(timedelta(days=1))
    while sum(api.row("reap").values()):
        pass


def check_at(conn: psycopg.Connection, lease: UUID) -> datetime:
    """When reap looks at the lease's claim next."""
    row = conn.execute("select check_at from hwqueue.claim where lease_id = %s", [lease]).fetchone()
    assert row is not None
    at: datetime = row[0]
    return at


def test_expired_claims_use_up_an_attempt(api: Api, clock: Clock) -> None:
    queue, node = api.queue(claim_timeout=60), api.node()
    claim = api.running(queue, node)
    clock.advance(MINUTE - timedelta(milliseconds=1))
    assert api.row("reap")["expired"] == 0
    clock.advance(timedelta(milliseconds=1))
    assert api.row("reap")["expired"] == 1
    lease = api.lease(claim["lease_id"])
    assert (lease["state"], lease["attempt"]) == ("pending", 1)
    [attempt] = lease["attempts"]
    assert (attempt["outcome"], attempt["error"]["reason"]) == ("expired", "claim_expired")
    [again] = api.claim(node, queue)
    assert (again["lease_id"], again["attempt"]) == (claim["lease_id"], 2)


def test_the_last_attempt_kills(api: Api, clock: Clock) -> None:
    claim = api.running(api.queue(claim_timeout=60), max_attempts=1)
    clock.advance(MINUTE)
    assert api.row("reap")["expired"] == 1
    lease = api.lease(claim["lease_id"])
    assert (lease["state"], lease["error"]["reason"]) == ("failed", "claim_expired")


def test_grace(api: Api, clock: Clock) -> None:
    claim = api.running(api.queue(claim_timeout=60, reap_grace=30))
    for seconds, expired in [(60, 0), (29, 0), (1, 1)]:
        clock.advance(timedelta(seconds=seconds))
        assert api.row("reap")["expired"] == expired
    assert api.state(claim["lease_id"]) == "pending"


def test_the_next_look_trails_the_end(api: Api, clock: Clock, conn: psycopg.Connection) -> None:
    """A heartbeat moves no index entry; reap catches up when it comes by."""
    node = api.node()
    claim = api.running(api.queue(claim_timeout=60), node)
    first = check_at(conn, claim["lease_id"])
    for _ in range(3):
        clock.advance(timedelta(seconds=30))
        api.rows("heartbeat_node", **node.who, claims=beat(claim))
    assert check_at(conn, claim["lease_id"]) == first < clock.now()
    assert api.row("reap")["expired"] == 0
    assert check_at(conn, claim["lease_id"]) == api.lease(claim["lease_id"])["expires_at"]
    clock.advance(MINUTE)
    assert api.row("reap")["expired"] == 1


def test_what_it_had_set_aside_is_free(api: Api, clock: Clock) -> None:
    queue, node = api.queue(claim_timeout=60), api.node(capacity={"cpu_milli": 1000})
    api.running(queue, node, placement={"resources": {"cpu_milli": 1000}})
    clock.advance(MINUTE)
    assert api.row("reap")["expired"] == 1
    assert api.used(node)["used"]["cpu_milli"] == 0


def test_due_leases_are_promoted(api: Api, clock: Clock) -> None:
    lease = api.spawn(api.queue(), delay=60)
    assert api.row("reap")["promoted"] == 0
    clock.advance(MINUTE)
    assert api.row("reap")["promoted"] == 1
    assert api.state(lease) == "pending"


@pytest.mark.parametrize("delay", [0, 3600])
def test_deadlines(api: Api, clock: Clock, delay: int) -> None:
    deadline = clock.now() + MINUTE
    lease = api.spawn(api.queue(), delay=delay, deadline=deadline.isoformat())
    clock.advance(MINUTE - timedelta(milliseconds=1))
    assert api.row("reap")["deadlines"] == 0
    clock.advance(timedelta(milliseconds=1))
    assert api.row("reap")["deadlines"] == 1
    row = api.lease(lease)
    assert (row["state"], row["error"]["reason"]) == ("failed", "deadline_exceeded")
    assert datetime.fromisoformat(row["error"]["deadline"]) == deadline


def test_a_claimed_lease_may_run_beyond_its_deadline(api: Api, clock: Clock) -> None:
    deadline = (clock.now() + MINUTE).isoformat()
    claim = api.running(api.queue(claim_timeout=600), deadline=deadline)
    clock.advance(2 * MINUTE)
    assert api.row("reap")["deadlines"] == 0
    assert api.state(claim["lease_id"]) == "claimed"


def test_a_call_is_bounded(api: Api, clock: Clock) -> None:
    queue, node = api.queue(claim_timeout=60), api.node()
    late = {"deadline": (clock.now() + MINUTE).isoformat()}
    for _ in range(3):
        api.running(queue, node)
        api.spawn(api.queue(), delay=60)
        api.spawn(api.queue(), **late)
    clock.advance(MINUTE)
    for times in (2, 1, 0):
        row = api.row("reap", limit=2)
        assert [row[part] for part in ("expired", "promoted", "deadlines")] == [times] * 3


def test_it_wakes_those_who_wait(api: Api, clock: Clock, conn: psycopg.Connection) -> None:
    queue, node = api.queue(claim_timeout=60), api.node()
    api.running(queue, node)
    assert api.claim(node, queue) == []
    conn.execute("listen hwqueue")
    clock.advance(MINUTE)
    api.rows("reap")
    assert f"0:{queue}" in [notify.payload for notify in conn.notifies(timeout=0)]


@pytest.mark.parametrize("limit", [0, -1, 100001, None])
def test_bad_limits(api: Api, limit: int | None) -> None:
    assert api.refused("QHA01", "reap", limit=limit).field == "p_limit"
