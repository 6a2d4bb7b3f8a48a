"""What wakes workers, and what an empty claim tells them."""

import re
from collections.abc import Callable
from datetime import timedelta

import psycopg
import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.sql.api import NOBODY, Api, Node


def test_a_payload_tells_no_name(api: Api, queue: str, node: Node, conn: psycopg.Connection) -> None:
    assert api.claim(node, queue) == []
    conn.execute("listen hwqueue")
    api.spawn(queue)
    [payload] = [notify.payload for notify in conn.notifies(timeout=0)]
    assert re.fullmatch("[0-9a-f]{32}", payload)
    assert payload == api.wake_payload(queue)
    # without the key there is nothing to compare guesses of names with
    row = conn.execute("select left(encode(sha256(%s), 'hex'), 32)", [queue.encode()])
    assert row.fetchone() != (payload,)


def test_each_queue_has_its_own(api: Api) -> None:
    rows = api.rows("wake_payloads", queues=["a", "b", "a"])
    assert sorted(row["queue"] for row in rows) == ["a", "b"]
    assert len({row["payload"] for row in rows}) == 2
    for queues in ([None], None):
        assert api.fault("wake_payloads", queues=queues) == "p_queues"


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


SECOND = timedelta(seconds=1)


def hint(api: Api, node: Node, *queues: str) -> tuple[timedelta, Row]:
    """When to ask again, and the reasons."""
    row = api.row("claim_hint", queues=list(queues), node=node.node_id)
    return row["retry_after"], row["reasons"]


def test_the_poll_interval(api: Api) -> None:
    slow, fast, node = api.queue(poll_interval=8), api.queue(poll_interval=3), api.node()
    assert hint(api, node, slow) == (8 * SECOND, {})
    assert hint(api, node, slow, fast, slow) == (3 * SECOND, {})
    refusal = api.refused("QHQ01", "claim_hint", queues=[slow, "nowhere"], node=node.node_id)
    assert refusal.detail["queue"] == "nowhere"
    api.refused("QHN01", "claim_hint", queues=[slow], node=NOBODY)
    assert api.fault("claim_hint", queues=[], node=node.node_id) == "p_queues"


def test_what_becomes_due_sooner(api: Api, clock: Clock) -> None:
    queue, node = api.queue(poll_interval=60), api.node()
    api.spawn(queue, delay=25)
    api.spawn(queue, delay=10)
    for seconds, expected in [(0, 10), (4, 6), (20, 0)]:
        clock.advance(seconds * SECOND)
        assert hint(api, node, queue)[0] == expected * SECOND


def test_reasons_count_classes(api: Api) -> None:
    """Of a node that suits some, of a cordoned one and a paused queue, and beside a new term."""
    queue, node = api.queue(), api.node(labels={"zone": "a"}, capacity={"cpu_milli": 1})
    for zone in ("b", "b", "c"):
        api.spawn(queue, affinity_tags={"zone": zone})
    api.spawn(queue, affinity_tags={"gone": 1})
    api.needing(queue, cpu_milli=2)
    api.spawn(queue, affinity_tags={"zone": "d"}, delay=60)
    api.spawn(queue)
    assert hint(api, node, queue)[1] == {"label_mismatch": 2, "label_missing": 1, "insufficient_capacity": 1}
    paused, queue, node = api.queue(), api.queue(), api.node()
    api.rows("pause_queue", queue=paused)
    api.rows("cordon_node", node=node.node_id)
    api.spawn(queue)
    assert hint(api, node, paused, queue)[1] == {"node_draining": 1, "queue_paused": 1}
    assert hint(api, node, paused) == (SECOND, {"queue_paused": 1})
    queue, node = api.queue(poll_interval=60), api.node(rack=1)  # a term that is not in force yet
    spread = [{"domain": "rack", "max_per_domain": 1, "select": {"labels": {"app": "db"}}}]
    api.spawn(queue, labels={"app": "db"}, placement={"spread": spread})
    assert hint(api, node, queue) == (0 * SECOND, {"unpublished": 1})
    api.settle_terms()
    assert hint(api, node, queue)[1] == {}
