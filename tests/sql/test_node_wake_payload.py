"""Notifications that tell a node's worker to heartbeat at once: when, and who knows them."""

import re
from collections.abc import Callable
from datetime import timedelta

import psycopg
import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.sql.api import NOBODY, Api, Node

NO_EXECUTE = {"key": "k", "effect": "no_execute"}
NOW = timedelta(0)


def heard(conn: psycopg.Connection, call: Callable[..., object], *arguments: object) -> list[str]:
    """The payloads of the notifications that a call sends."""
    conn.execute("listen hwqueue")
    list(conn.notifies(timeout=0))  # what came before
    call(*arguments)
    return [notify.payload for notify in conn.notifies(timeout=0)]


def payload(api: Api, node: Node) -> str:
    return str(api.value("node_wake_payload", node=node.node_id))


WAKES: dict[str, Callable[[Api, Node, Row], object]] = {
    "cancel": lambda api, _node, claim: api.rows("cancel_lease", lease=claim["lease_id"]),
    "drain": lambda api, node, _: api.rows("drain_node", node=node.node_id, deadline=NOW),
    "taint": lambda api, node, _: api.rows("taint_node", node=node.node_id, taint=NO_EXECUTE),
    "deregister": lambda api, node, _: api.rows("deregister_node", node=node.node_id),
    "supersede": lambda api, node, _: api.node(node.node_id, name=node.name, instance_id="second"),
    "hand over": lambda api, node, _: api.rows("hand_over_node", node=node.node_id, login="hwqueue_worker"),
}


@pytest.mark.parametrize("how", WAKES)
def test_a_call_that_stops_claims_wakes_their_node_once(api: Api, conn: psycopg.Connection, how: str) -> None:
    queue, node = api.queue(tuning={"notify": False}), api.node()
    claim = api.running(queue, node)
    api.running(queue, node)
    mine = payload(api, node)
    assert heard(conn, WAKES[how], api, node, claim) == [mine]


@pytest.mark.parametrize("how", [how for how in WAKES if how not in ("cancel", "hand over")])
def test_without_claims_nobody_is_woken(api: Api, node: Node, conn: psycopg.Connection, how: str) -> None:
    assert heard(conn, WAKES[how], api, node, {}) == []


def test_what_stops_no_claim_now_wakes_nobody(api: Api, conn: psycopg.Connection, clock: Clock) -> None:
    """What was asked to stop already, what waits, and what is to stop later."""
    queue, node = api.queue(), api.node()
    claim = api.running(queue, node)
    WAKES["cancel"](api, node, claim)
    clock.advance(timedelta(seconds=1))
    for how in ("cancel", "drain", "taint"):
        assert (how, heard(conn, WAKES[how], api, node, claim)) == (how, [])
    assert heard(conn, WAKES["cancel"], api, node, {"lease_id": api.spawn(queue)}) == []
    tolerant = api.node()
    tolerate = [{"key": "k", "op": "exists", "effect": "no_execute", "seconds": 3600}]
    api.running(queue, tolerant, placement={"tolerate": tolerate})
    assert heard(conn, WAKES["taint"], api, tolerant, {}) == []


def test_a_payload_tells_no_name_and_is_the_nodes_own(api: Api) -> None:
    """And who had the node before does not know it."""
    first, second = api.node(), api.node()
    before = payload(api, first)
    assert re.fullmatch("[0-9a-f]{32}", before)
    assert before not in (payload(api, second), api.wake_payload(str(first.node_id)))
    api.rows("hand_over_node", node=first.node_id, login="hwqueue_worker")
    assert payload(api, first) != before
    api.rows("deregister_node", node=first.node_id)
    for node in (first.node_id, NOBODY):
        api.refused("QHN01", "node_wake_payload", node=node)
