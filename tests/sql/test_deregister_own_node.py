"""Nodes that leave by themselves: their worker stops, or they have been silent for long."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from hwqueue.testing import Clock
from tests.sql.api import Api, Node, token

DAY = timedelta(days=1)

# What an operator sets, which a node that leaves by itself would lose in the end.
SET_BY_OPERATORS: dict[str, dict[str, Any]] = {
    "cordon_node": {},
    "drain_node": {"deadline": timedelta(0)},
    "taint_node": {"taint": {"key": "k", "effect": "no_schedule"}},
    "attest_node": {"domain": "pci"},
}


@pytest.fixture(autouse=True)
def _default(api: Api) -> Iterator[None]:
    """Other tests may have set another one."""
    api.rows("set_node_expiry", after=7 * DAY)
    yield
    api.rows("set_node_expiry", after=7 * DAY)


def sign_off(api: Api, node: Node) -> bool:
    left = api.value("deregister_own_node", **node.who)
    assert isinstance(left, bool)
    return left


def expire(api: Api, clock: Clock, span: timedelta) -> None:
    """Reap reports the silent nodes, prune deregisters those silent for too long."""
    clock.advance(span)
    api.rows("reap")
    api.rows("prune")


def is_registered(api: Api, node: Node) -> bool:
    return bool(api.rows("list_nodes", name=node.name))


def reason(api: Api, node: Node) -> Any:
    [event] = api.rows("list_events", filter={"node": str(node.node_id), "code": "node_deregistered"})
    return event["detail"]["reason"]


def test_a_node_without_claims_leaves_and_comes_back(api: Api) -> None:
    node = api.node(queues=["q"])
    assert sign_off(api, node)
    assert not is_registered(api, node)
    assert reason(api, node) == "stopped"
    api.refused("QHN01", "deregister_own_node", **node.who)
    api.refused("QHN01", "claim_task", queues=[api.queue()], **node.who)
    assert api.node(node.node_id, name=node.name, instance_id="second").epoch == node.epoch + 1


def test_its_name_is_free_again(api: Api) -> None:
    node = api.node()
    assert sign_off(api, node)
    assert is_registered(api, api.node(name=node.name))


def test_a_node_with_claims_stays(api: Api) -> None:
    queue, node = api.queue(), api.node()
    claim = api.running(queue, node)
    assert not sign_off(api, node)
    assert api.value("complete_lease", **token(claim)) == "completed"
    assert sign_off(api, node)


@pytest.mark.parametrize("function", SET_BY_OPERATORS)
def test_what_an_operator_set_keeps_a_node(api: Api, clock: Clock, function: str) -> None:
    node = api.node()
    api.rows(function, node=node.node_id, **SET_BY_OPERATORS[function])
    assert not sign_off(api, node)
    expire(api, clock, 8 * DAY)
    assert is_registered(api, node)


def test_another_instance_keeps_the_node(api: Api) -> None:
    node = api.node()
    api.node(node.node_id, name=node.name, instance_id="second")
    api.refused("QHN03", "deregister_own_node", **node.who)


@pytest.mark.parametrize("leave", ["stop", "silence"])
def test_it_belongs_to_its_login_still(api: Api, conn: psycopg.Connection, clock: Clock, leave: str) -> None:
    node = api.node()
    if leave == "stop":
        assert sign_off(api, node)
    else:
        expire(api, clock, 8 * DAY)
    row = conn.execute(
        "select session_user::text, login from hwqueue.node_state where node_id = %s",
        [node.node_id],
    ).fetchone()
    assert row is not None
    assert row[0] == row[1]
    api.rows("hand_over_node", node=node.node_id, login="hwqueue_worker")
    [login] = conn.execute(
        "select login from hwqueue.node_state where node_id = %s", [node.node_id]
    ).fetchone() or [None]
    assert login == "hwqueue_worker"


def test_a_node_silent_for_long_leaves(api: Api, clock: Clock) -> None:
    node = api.node()
    expire(api, clock, 6 * DAY)
    assert is_registered(api, node)
    expire(api, clock, 2 * DAY)
    assert not is_registered(api, node)
    assert reason(api, node) == "silent"


def test_a_node_that_came_back_stays(api: Api, clock: Clock) -> None:
    node = api.node()
    clock.advance(8 * DAY)
    api.rows("reap")
    api.rows("heartbeat_node", **node.who)
    api.rows("prune")
    assert is_registered(api, node)


def test_a_silent_node_with_claims_stays(api: Api, clock: Clock) -> None:
    node = api.node()
    api.running(api.queue(), node, claim_timeout="30 days")
    expire(api, clock, 8 * DAY)
    assert is_registered(api, node)


def test_how_long_a_node_may_be_silent(api: Api, clock: Clock) -> None:
    node = api.node()
    assert api.value("set_node_expiry", after=None) == 7 * DAY
    expire(api, clock, 300 * DAY)
    assert is_registered(api, node)
    assert api.value("set_node_expiry", after=301 * DAY) is None
    assert api.value("set_node_expiry", after=299 * DAY) == 301 * DAY
    api.rows("prune")
    assert not is_registered(api, node)


@pytest.mark.parametrize("after", [timedelta(minutes=59), timedelta(days=3651), timedelta(-1)])
def test_bad_spans(api: Api, after: timedelta) -> None:
    assert api.fault("set_node_expiry", after=after) == "p_after"
