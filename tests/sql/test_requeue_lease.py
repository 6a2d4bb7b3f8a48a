"""requeue_lease: a fresh set of attempts for what failed or was cancelled."""

from datetime import timedelta

import psycopg
import pytest

from hwqueue.testing import Clock
from tests.sql.api import NOBODY, Api, token


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


def test_a_cancelled_lease_lives_again(api: Api) -> None:
    queue = api.queue()
    lease = api.spawn(queue)
    api.rows("cancel_lease", lease=lease)
    assert api.value("requeue_lease", lease=lease) == "pending"
    assert api.claimed(api.node(), queue) == [lease]


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


def test_it_wakes_those_who_wait(api: Api, conn: psycopg.Connection) -> None:
    queue = api.queue()
    lease = api.spawn(queue)
    api.rows("cancel_lease", lease=lease)
    assert api.claim(api.node(), queue) == []
    conn.execute("listen hwqueue")
    api.rows("requeue_lease", lease=lease)
    assert [notify.payload for notify in conn.notifies(timeout=0)] == [api.wake_payload(queue)]


@pytest.mark.parametrize(
    ("code", "state"),
    [("QHL03", "completed"), ("QHL07", "pending"), ("QHL07", "scheduled"), ("QHL07", "claimed")],
)
def test_others_cannot_be_requeued(api: Api, code: str, state: str) -> None:
    queue = api.queue()
    if state in ("claimed", "completed"):
        claim = api.running(queue)
        lease = claim["lease_id"]
        if state == "completed":
            api.rows("complete_lease", **token(claim))
    else:
        lease = api.spawn(queue, delay=60 if state == "scheduled" else 0)
    refusal = api.refused(code, "requeue_lease", lease=lease)
    assert refusal.detail == {"lease_id": str(lease), "state": state}


def test_no_such_lease(api: Api) -> None:
    assert api.refused("QHL04", "requeue_lease", lease=NOBODY).detail["lease_id"] == str(NOBODY)
