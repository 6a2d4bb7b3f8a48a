"""get_lease: all there is to know, in every state."""

from datetime import timedelta
from uuid import uuid4

from hwqueue.testing import Clock
from tests.sql.api import NOBODY, Api, token


def test_states(api: Api, clock: Clock) -> None:
    queue, node = api.queue(max_attempts=1), api.node()
    lease = api.spawn(queue, delay=10)
    assert api.state(lease) == "scheduled"
    clock.advance(timedelta(seconds=10))
    api.rows("reap")
    assert api.state(lease) == "pending"
    [claim] = api.claim(node, queue)
    assert api.state(lease) == "claimed"
    api.rows("fail_lease", **token(claim), error={})
    assert api.state(lease) == "failed"
    api.rows("requeue_lease", lease=lease)
    api.rows("cancel_lease", lease=lease)
    assert api.state(lease) == "cancelled"


def test_a_claimed_lease(api: Api, clock: Clock) -> None:
    node = api.node(capacity={"cpu_milli": 500})
    needs = {"resources": {"cpu_milli": 200}}
    claim = api.running(api.queue(claim_timeout=60), node, placement=needs)
    row = api.lease(claim["lease_id"])
    expected = {
        "node_id": node.node_id,
        "claim_token": claim["claim_token"],
        "claimed_at": clock.now(),
        "expires_at": clock.now() + timedelta(seconds=60),
        "assignment": {"cpu_milli": 200},
        "stop_reason": None,
        "finished_at": None,
    }
    assert {key: row[key] for key in expected} == expected


def test_no_such_lease(api: Api) -> None:
    for lease in (NOBODY, uuid4()):
        assert api.refused("QHL04", "get_lease", lease=lease).detail["lease_id"] == str(lease)
