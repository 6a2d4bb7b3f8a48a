"""Workers that run as many leases as they take: explanations, views and figures say so."""

from typing import Any

import pytest

from tests.calls import Row
from tests.sql.api import Api, Node
from tests.sql.explained import actions, explain, near

pytestmark = pytest.mark.usefixtures("lone")

FULL = "its worker runs 2 at a time, and has no slot free"


def filled(api: Api, queue: str, **spec: Any) -> tuple[Node, list[Row]]:
    """A node whose worker runs two leases at a time, and does."""
    node = api.node(**({"concurrency": 2} | spec))
    for _ in range(2):
        api.spawn(queue)
    return node, api.claim(node, queue, qty=2)


def pending(api: Api, queue: str) -> Row:
    """What the views say of the one class that is pending."""
    [row] = [row for row in api.rows("pending_reasons") if row["queue"] == queue]
    return row


def test_an_explanation_says_that_all_are_full(api: Api, queue: str) -> None:
    node, [claim, _] = filled(api, queue)
    lease = api.spawn(queue)
    found = explain(api, lease)
    assert (found["nodes_matching"], found["nodes_free"]) == (1, 0)
    assert (found["code"], found["permanent"]) == ("nodes_support_but_contended", False)
    assert found["headline"] == "1 node matches, none is free: 1 lacks a worker with a slot free"
    [reason] = near(found, node)["reasons"]
    assert (reason["stage"], reason["message"]) == ("free", FULL)
    assert (reason["wanted"], reason["has"]) == ("a worker with a slot free", "2 slots, all in use")
    assert len(reason["holders"]) == 2
    assert actions(found) == ["wait"]
    [match] = [r for r in api.rows("match_nodes", placement={}) if r["node_id"] == node.node_id]
    assert [r["message"] for r in match["reasons"]] == [FULL]
    api.complete(claim)
    assert explain(api, lease)["nodes_free"] == 1


def test_views_and_figures_say_so(api: Api, queue: str) -> None:
    node, [claim, _] = filled(api, queue)
    lease = api.spawn(queue, labels={"a": "b"})
    row = pending(api, queue)
    assert (row["code"], row["permanent"]) == ("nodes_support_but_contended", False)
    assert (row["nodes_matching"], row["nodes_free"]) == (1, 0)
    [usage] = [row for row in api.rows("node_usage") if row["node_id"] == node.node_id]
    assert (usage["claims"], usage["slots"]) == (2, 2)
    assert api.used(node)["slots"] == 2
    unmet = (
        "select labels ->> 'reason', value from hwqueue.metrics()"
        " where name = 'hwqueue_unmet_leases' and labels ->> 'queue' = %s"
    )
    assert api.conn.execute(unmet, [queue]).fetchall() == [("contended", 1)]
    other = api.node(concurrency=1)  # has a slot free
    row = pending(api, queue)
    assert (row["code"], row["nodes_matching"], row["nodes_free"]) == (None, 2, 1)
    assert api.conn.execute(unmet, [queue]).fetchall() == []
    api.rows("deregister_node", node=other.node_id)
    api.complete(claim)
    assert pending(api, queue)["nodes_free"] == 1
    assert api.claimed(node, queue) == [lease]


def test_it_limits_no_claim(api: Api, queue: str) -> None:
    """It is what the worker says of itself: no claim counts for it, and declared slots come first."""
    node = api.node(concurrency=1)
    leases = [api.spawn(queue) for _ in range(2)]
    claims = api.claim(node, queue, qty=2)
    assert [claim["lease_id"] for claim in claims] == leases
    assert [claim["assignment"] for claim in claims] == [None, None]


def test_a_registration_may_change_or_drop_it(api: Api, queue: str) -> None:
    node, _ = filled(api, queue)
    lease = api.spawn(queue)
    for more, free in ({"concurrency": 3}, 1), ({"concurrency": 2}, 0), ({}, 1):
        api.node(node.node_id, name=node.name, **more)
        assert explain(api, lease)["nodes_free"] == free
    node = api.node(slots=5, concurrency=2)
    assert api.used(node)["slots"] == 5
    for wrong in 0, 1_000_001, "many", 1.5:
        spec = {"name": node.name, "instance_id": "x", "concurrency": wrong}
        assert api.fault("register_node", node=node.node_id, spec=spec) == "spec.concurrency"
