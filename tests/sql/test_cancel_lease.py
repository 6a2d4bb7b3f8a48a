"""cancel_lease: at once while it waits, by request while it runs."""

from datetime import timedelta

import pytest

from hwqueue.testing import Clock
from tests.sql.api import NOBODY, Api, token


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
