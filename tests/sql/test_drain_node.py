"""drain_node: cordoned, and with a deadline its claims are asked to stop."""

from datetime import timedelta

import pytest

from tests.sql.api import Api, beat, token


def test_without_a_deadline_what_runs_may_finish(api: Api) -> None:
    queue, node = api.queue(), api.node()
    claim = api.running(queue, node)
    api.rows("drain_node", node=node.node_id)
    api.spawn(queue)
    assert api.claimed(node, queue) == []
    assert api.verdicts(node, claim) == ["ok"]
    assert (api.used(node)["cordoned"], api.used(node)["draining"]) == (True, False)


def test_with_a_deadline_claims_are_preempted(api: Api) -> None:
    queue, node = api.queue(), api.node()
    claim, cancelled = api.running(queue, node), api.running(queue, node)
    api.rows("cancel_lease", lease=cancelled["lease_id"])
    api.rows("drain_node", node=node.node_id, deadline=timedelta(minutes=5))
    assert api.used(node)["draining"]
    rows = api.rows("heartbeat_node", **node.who, claims=beat(claim, cancelled))
    assert {row["lease_id"]: row["verdict"] for row in rows} == {
        claim["lease_id"]: "preempted",
        cancelled["lease_id"]: "cancelled",
    }
    assert api.lease(claim["lease_id"])["stop_reason"] == "preempted"


def test_preempted_work_goes_back_in_line(api: Api) -> None:
    """It was not cancelled: handed back it may run elsewhere, finished it is finished."""
    queue, node, other = api.queue(), api.node(), api.node()
    back, done = api.running(queue, node), api.running(queue, node)
    api.rows("drain_node", node=node.node_id, deadline=timedelta(0))
    assert api.value("release_lease", **token(back)) == "pending"
    assert api.value("complete_lease", **token(done)) == "completed"
    assert api.claimed(other, queue) == [back["lease_id"]]


def test_uncordoned_it_works_again(api: Api) -> None:
    queue, node = api.queue(), api.node()
    api.rows("drain_node", node=node.node_id, deadline=timedelta(minutes=5))
    api.rows("uncordon_node", node=node.node_id)
    lease = api.spawn(queue)
    assert api.claimed(node, queue) == [lease]
    assert not api.used(node)["draining"]


@pytest.mark.parametrize("days", [-1, 3651])
def test_bad_deadlines(api: Api, days: int) -> None:
    node = api.node()
    assert api.fault("drain_node", node=node.node_id, deadline=timedelta(days=days)) == "p_deadline"
