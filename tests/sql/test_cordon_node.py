"""cordon_node, drain_node and uncordon_node: nothing new, and with a deadline claims are asked to stop."""

from datetime import timedelta

import pytest

from tests.sql.api import NOBODY, Api, Node, token


@pytest.mark.parametrize("function", ["cordon_node", "drain_node"])
def test_a_cordoned_node_gets_nothing_new(api: Api, queue: str, node: Node, function: str) -> None:
    """What runs may finish; drained without a deadline, too."""
    claim = api.running(queue, node)
    api.rows(function, node=node.node_id)
    waiting, other = api.spawn(queue), api.spawn(queue)
    assert api.claimed(node, queue) == []
    assert api.claimed(api.node(), queue) == [waiting]  # others go on
    assert api.verdicts(node, claim) == ["ok"]
    assert (api.used(node)["cordoned"], api.used(node)["draining"]) == (True, False)
    assert api.value("complete_lease", **token(claim)) == "completed"
    api.rows("uncordon_node", node=node.node_id)
    assert not api.used(node)["cordoned"]
    assert api.claimed(node, queue) == [other]


def test_with_a_deadline_claims_are_preempted(api: Api, queue: str, node: Node) -> None:
    """Not cancelled: handed back a lease may run elsewhere, finished it is finished."""
    back, done, cancelled = (api.running(queue, node) for _ in range(3))
    api.rows("cancel_lease", lease=cancelled["lease_id"])
    api.rows("drain_node", node=node.node_id, deadline=timedelta(minutes=5))
    assert api.used(node)["draining"]
    assert api.verdicts(node, back, done, cancelled) == ["preempted", "preempted", "cancelled"]
    assert api.lease(back["lease_id"])["stop_reason"] == "preempted"
    assert api.value("release_lease", **token(back)) == "pending"
    assert api.value("complete_lease", **token(done)) == "completed"
    assert api.claimed(api.node(), queue) == [back["lease_id"]]
    api.rows("uncordon_node", node=node.node_id)
    lease = api.spawn(queue)
    assert api.claimed(node, queue) == [lease]
    assert not api.used(node)["draining"]
    for days in (-1, 3651):
        assert api.fault("drain_node", node=node.node_id, deadline=timedelta(days=days)) == "p_deadline"


def test_twice_is_once(api: Api, node: Node) -> None:
    """For a node that there is."""
    for function in ("cordon_node", "uncordon_node"):
        api.rows(function, node=node.node_id)
        with api.unchanged():
            api.rows(function, node=node.node_id)
    api.rows("deregister_node", node=node.node_id)
    for function in ("cordon_node", "uncordon_node", "drain_node"):
        for unknown in (NOBODY, node.node_id):
            refusal = api.refused("QHN01", function, node=unknown)
            assert refusal.detail["node_id"] == str(unknown)
