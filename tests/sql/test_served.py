"""What workers announce: queues and tasks, and free places."""

from datetime import timedelta
from typing import Any

import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.sql.api import Api, Node
from tests.sql.explained import actions, codes, explain, explain_class, funnel, near

pytestmark = pytest.mark.usefixtures("lone")


_SERVED = "select queues, tasks from hwqueue.node where node_id = %s"


def pending(api: Api, queue: str, **more: Any) -> Row:
    """The only pending class of the queue."""
    return api.row("pending_reasons", queue=queue, **more)


def test_a_task_without_a_handler_is_explained(api: Api, queue: str) -> None:
    node = api.node(queues=[queue], tasks=["mail", "render"])
    lease = api.spawn(queue, "maill")
    found = explain(api, lease)
    assert (found["code"], found["permanent"]) == ("no_handler", True)
    assert found["headline"] == 'no live node has a handler for task "maill"; did you mean mail?'
    assert (found["nodes_live"], found["nodes_matching"], found["nodes_free"]) == (1, 0, 0)
    assert (funnel(found)["cordon"], funnel(found)["served"]) == (1, 0)
    assert codes(found, node) == ["no_handler"]
    [reason] = near(found, node)["reasons"]
    assert (reason["stage"], reason["predicate"]) == ("served", {"task": "maill"})
    assert reason["wanted"] == 'a handler for task "maill"'
    assert actions(found) == ["serve"]
    of_class = explain_class(api, lease)
    assert (of_class["code"], of_class["headline"]) == (found["code"], found["headline"])


def test_a_queue_that_nobody_polls_is_explained(api: Api) -> None:
    polled, queue = api.queue(), api.queue()
    node = api.node(queues=[polled], tasks=["mail"])
    lease = api.spawn(queue, "mail")
    found = explain(api, lease)
    assert (found["code"], found["permanent"]) == ("no_handler", True)
    assert found["headline"].startswith(f'no live node polls queue "{queue}"')
    assert codes(found, node) == ["no_handler"]
    assert near(found, node)["reasons"][0]["predicate"] == {"queue": queue}
    assert f"--queue {queue}" in found["help"][0]["words"]
    api.node(queues=[queue], tasks=["render"])  # the handler elsewhere does not count
    found = explain(api, lease)
    assert found["headline"] == f'no live node that polls queue "{queue}" has a handler for task "mail"'


def test_pending_views_say_the_same(api: Api) -> None:
    queue, nobody = api.queue(), api.queue()
    api.node(queues=[queue], tasks=["mail"])
    for where, task in [(queue, "maill"), (nobody, "mail")]:
        lease = api.spawn(where, task)
        row = pending(api, where)
        assert (row["code"], row["permanent"]) == ("no_handler", True)
        assert (row["nodes_matching"], row["nodes_free"], row["nodes_near"]) == (0, 0, 1)
        assert row["message"] == explain(api, lease)["headline"]
        assert pending(api, where, kind="no_match")["class_id"] == row["class_id"]
    api.spawn(queue, "mail")
    good = [row for row in api.rows("pending_reasons", queue=queue) if row["code"] is None]
    assert [(row["task_name"], row["nodes_matching"]) for row in good] == [("mail", 1)]


def test_of_many_nodes_only_those_that_serve_it_match(api: Api, queue: str) -> None:
    serving = api.node(queues=[queue, "other"], tasks=["mail"])
    api.node(queues=["other"], tasks=["mail"])
    api.node(queues=[queue], tasks=[])
    api.node(queues=None, tasks=["render"])
    unknown = api.node()
    found = explain(api, api.spawn(queue, "mail"))
    assert (found["code"], found["nodes_matching"], funnel(found)["served"]) == ("ready", 2, 2)
    assert near(found, serving)["reasons"] == near(found, unknown)["reasons"] == []
    assert pending(api, queue)["nodes_matching"] == 2


def test_nodes_that_announce_nothing_are_taken_as_serving_anything(api: Api, queue: str) -> None:
    api.node()
    found = explain(api, api.spawn(queue, "mail"))
    assert found["code"] == "ready"
    [stage] = [stage for stage in found["funnel"] if stage["stage"] == "served"]
    assert stage == {"stage": "served", "nodes": 1, "unannounced": 1}


def test_a_node_that_serves_it_and_is_silent_comes_first(api: Api, queue: str, clock: Clock) -> None:
    api.node(queues=[queue], tasks=["mail"], heartbeat_timeout=45)
    clock.advance(timedelta(minutes=3))
    api.node(queues=["other"], tasks=["mail"])
    lease = api.spawn(queue, "mail")
    found = explain(api, lease)
    assert (found["code"], found["headline"]) == ("node_not_live", "1 node matches, but it is silent")
    assert pending(api, queue)["code"] == "node_not_live"


def test_matching_tells_nodes_without_a_handler(api: Api, queue: str) -> None:
    serving, idle = api.node(queues=[queue], tasks=["mail"]), api.node(queues=["x"], tasks=["mail"])

    def reasons(**options: str) -> dict[Any, list[str]]:
        rows = api.rows("match_nodes", placement={}, options=options)
        return {row["node_id"]: [reason["code"] for reason in row["reasons"]] for row in rows}

    assert reasons(queue=queue, task="mail") == {serving.node_id: [], idle.node_id: ["no_handler"]}
    assert reasons(queue=queue) == {serving.node_id: [], idle.node_id: ["no_handler"]}
    assert reasons(task="maill") == {node.node_id: ["no_handler"] for node in (serving, idle)}
    assert reasons() == {serving.node_id: [], idle.node_id: []}


def test_what_else_keeps_it_out_is_told_where_it_is_served(api: Api, queue: str) -> None:
    """Elsewhere the hint after an empty claim names the handler that is missing."""
    node = api.node(queues=[queue], tasks=["mail"])
    lease = api.spawn(queue, "mail", affinity_tags={"gpu": True})
    assert explain(api, lease)["code"] == pending(api, queue)["code"] == "label_missing"
    api.rows("cancel_lease", lease=lease)
    api.spawn(queue, "maill", affinity_tags={"gpu": True})
    assert api.row("claim_hint", queues=[queue], node=node.node_id)["reasons"] == {"no_handler": 1}


def test_a_registration_replaces_what_was_announced(api: Api) -> None:
    node = api.node(queues=["a", "b"], tasks=["mail"])
    assert api.conn.execute(_SERVED, [node.node_id]).fetchone() == (["a", "b"], ["mail"])
    api.node(node.node_id, name=node.name, tasks=["render"])
    assert api.conn.execute(_SERVED, [node.node_id]).fetchone() == (None, ["render"])
    api.node(node.node_id, name=node.name)
    assert api.conn.execute(_SERVED, [node.node_id]).fetchone() == (None, None)
    api.node(node.node_id, name=node.name, queues=["a"])
    api.rows("deregister_node", node=node.node_id)
    assert api.conn.execute(_SERVED, [node.node_id]).fetchone() == (None, None)


def test_a_list_that_is_no_list_of_names_is_refused(api: Api) -> None:
    node, good = api.node().node_id, {"name": "n", "instance_id": "i"}
    for tasks in ([1], ["no name"], [f"t{number}" for number in range(10_001)]):
        assert api.fault("register_node", node=node, spec=good | {"tasks": tasks}) == "spec.tasks"
    assert api.fault("register_node", node=node, spec=good | {"queues": "mail"}) == "spec.queues"


FULL = "its worker runs 2 at a time, and has no slot free"


def filled(api: Api, queue: str, **spec: Any) -> tuple[Node, list[Row]]:
    """A node whose worker runs two leases at a time, and does."""
    node = api.node(**({"concurrency": 2} | spec))
    for _ in range(2):
        api.spawn(queue)
    return node, api.claim(node, queue, qty=2)


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
