"""Nodes that leave: an operator takes them out, their worker stops, or they have been silent for long."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from hwqueue.testing import Clock
from tests.sql.api import NOBODY, Api, Node, token

DAY = timedelta(days=1)

# What an operator sets, which a node that leaves by itself would lose in the end.
SET_BY_OPERATORS: dict[str, dict[str, Any]] = {
    "cordon_node": {},
    "drain_node": {"deadline": timedelta(0)},
    "taint_node": {"taint": {"key": "k", "effect": "no_schedule"}},
    "set_node_tenants": {"tenants": ["film"]},
    "attest_node": {"domain": "pci"},
}


@pytest.fixture(autouse=True)
def _default(api: Api) -> Iterator[None]:
    """The test may have set another one."""
    yield
    api.rows("set_node_expiry", after=7 * DAY)


def sign_off(api: Api, node: Node) -> bool:
    return bool(api.value("deregister_own_node", **node.who))


def expire(api: Api, clock: Clock, span: timedelta) -> None:
    """Reap reports the silent nodes, prune deregisters those silent for too long."""
    api.reap_after(clock, span)
    api.rows("prune")


def is_registered(api: Api, node: Node) -> bool:
    return bool(api.rows("list_nodes", name=node.name))


def reason(api: Api, node: Node) -> Any:
    [event] = api.rows("list_events", filter={"node": str(node.node_id), "code": "node_deregistered"})
    return event["detail"]["reason"]


def test_its_claims_end_at_once(api: Api, queue: str, node: Node) -> None:
    claim = api.running(queue, node)
    api.rows("deregister_node", node=node.node_id)
    lease = api.lease(claim["lease_id"])
    assert (lease["state"], lease["attempt"]) == ("pending", 1)
    assert [a["outcome"] for a in lease["attempts"]] == ["superseded"]
    assert api.claimed(api.node(), queue) == [claim["lease_id"]]
    api.refused("QHL01", "complete_lease", **token(claim))
    # and it is seen nowhere
    assert not is_registered(api, node)
    assert node.node_id not in [r["node_id"] for r in api.rows("match_nodes", placement={})]
    api.refused("QHN01", "claim_task", queues=[api.queue()], **node.who)
    api.refused("QHN01", "heartbeat_node", **node.who)
    refusal = api.refused("QHN01", "deregister_node", node=node.node_id)
    assert refusal.detail["node_id"] == str(node.node_id)
    api.refused("QHN01", "deregister_node", node=NOBODY)


def test_a_node_without_claims_leaves_and_comes_back(api: Api) -> None:
    node = api.node(queues=["q"])
    assert sign_off(api, node)
    assert not is_registered(api, node)
    assert reason(api, node) == "stopped"
    api.refused("QHN01", "deregister_own_node", **node.who)
    api.refused("QHN01", "claim_task", queues=[api.queue()], **node.who)
    again = api.node(node.node_id, name=node.name, instance_id="second")
    assert again.epoch == node.epoch + 1
    api.refused("QHN03", "deregister_own_node", **node.who)  # another instance keeps the node
    assert sign_off(api, again)
    assert is_registered(api, api.node(name=node.name))  # the name is free


def test_a_node_with_claims_stays(api: Api, node: Node, clock: Clock) -> None:
    claim = api.running(api.queue(), node, claim_timeout="30 days")
    assert not sign_off(api, node)
    expire(api, clock, 8 * DAY)
    assert is_registered(api, node)
    assert api.value("complete_lease", **token(claim)) == "completed"
    assert sign_off(api, node)


@pytest.mark.parametrize("function", SET_BY_OPERATORS)
def test_what_an_operator_set_keeps_a_node(api: Api, node: Node, clock: Clock, function: str) -> None:
    api.rows(function, node=node.node_id, **SET_BY_OPERATORS[function])
    assert not sign_off(api, node)
    expire(api, clock, 8 * DAY)
    assert is_registered(api, node)


@pytest.mark.parametrize("leave", ["stop", "silence"])
def test_it_belongs_to_its_login_still(api: Api, node: Node, clock: Clock, leave: str) -> None:
    if leave == "stop":
        assert sign_off(api, node)
    else:
        expire(api, clock, 8 * DAY)
    login = "select login from hwqueue.node_state where node_id = %s"
    assert api.one(login, node.node_id) == api.one("select session_user::text")
    api.rows("hand_over_node", node=node.node_id, login="hwqueue_worker")
    assert api.one(login, node.node_id) == "hwqueue_worker"


def test_a_node_silent_for_long_leaves(api: Api, node: Node, clock: Clock) -> None:
    """One that came back stays."""
    api.reap_after(clock, 8 * DAY)
    api.rows("heartbeat_node", **node.who)
    api.rows("prune")
    assert is_registered(api, node)
    expire(api, clock, 6 * DAY)
    assert is_registered(api, node)
    expire(api, clock, 2 * DAY)
    assert not is_registered(api, node)
    assert reason(api, node) == "silent"


def test_how_long_a_node_may_be_silent(api: Api, node: Node, clock: Clock) -> None:
    assert api.value("set_node_expiry", after=None) == 7 * DAY
    expire(api, clock, 300 * DAY)
    assert is_registered(api, node)
    assert api.value("set_node_expiry", after=301 * DAY) is None
    assert api.value("set_node_expiry", after=299 * DAY) == 301 * DAY
    api.rows("prune")
    assert not is_registered(api, node)
    for after in (timedelta(minutes=59), timedelta(days=3651), timedelta(-1)):
        assert api.fault("set_node_expiry", after=after) == "p_after"
