"""Counts for operators: queues, nodes, labels, placement classes."""

from datetime import timedelta
from typing import Any

import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.sql.api import Api, beat
from tests.sql.isolation_support import devices

pytestmark = pytest.mark.usefixtures("lone")


def counted(api: Api, queue: str) -> Row:
    return api.row("queue_depth", queue=queue)


def test_a_queue_counts_what_waits_and_runs(api: Api, queue: str, clock: Clock) -> None:
    since = clock.now()
    for _ in range(2):
        api.spawn(queue)
        clock.advance(timedelta(seconds=1))
    api.spawn(queue, delay=60)
    due = clock.now() + timedelta(seconds=60)
    row = counted(api, queue)
    assert (row["pending"], row["scheduled"], row["running"]) == (2, 1, 0)
    assert (row["oldest_at"], row["next_at"], row["paused_at"]) == (since, due, None)
    [claim] = api.claim(api.node(), queue)
    row = counted(api, queue)
    assert (row["pending"], row["running"], row["stopping"], row["expired"]) == (1, 1, 0, 0)
    assert row["oldest_at"] == since + timedelta(seconds=1)
    api.rows("cancel_lease", lease=claim["lease_id"])
    assert counted(api, queue)["stopping"] == 1
    clock.advance(timedelta(minutes=10))
    assert counted(api, queue)["expired"] == 1
    api.rows("pause_queue", queue=queue)
    assert counted(api, queue)["paused_at"] == clock.now()


def test_an_empty_queue_is_a_row_and_a_dropped_one_is_not(api: Api) -> None:
    queue, gone = api.queue(), api.queue()
    api.spawn(gone)
    api.rows("drop_queue", queue=gone, force=True)
    names = [row["queue"] for row in api.rows("queue_depth")]
    assert queue in names
    assert gone not in names
    assert names == sorted(names)
    assert counted(api, queue)["oldest_at"] is None
    api.refused("QHQ01", "queue_depth", queue=gone)


def usage(api: Api, name: str) -> Row:
    [row] = [row for row in api.rows("node_usage") if row["node_name"] == name]
    return row


def test_a_node_tells_what_is_in_use(api: Api, queue: str) -> None:
    """What it does not count is null."""
    node = api.node(
        rack=7,
        slots=9,
        capacity={"cpu_milli": 4000, "memory_mib": 1000, "license": 3},
        gpus=devices(None, None, None),
        cores=[{"core": number} for number in range(4)],
        cpu_isolation=["whole_core"],
    )
    row = usage(api, node.name)
    assert (row["node_id"], row["rack"], row["slots"]) == (node.node_id, 7, 9)
    assert (row["gpus"], row["gpus_free"], row["cores"], row["cores_free"]) == (3, 3, 4, 4)
    resources = {"cpu_milli": 2000, "license": 2, "gpu_milli": 400}
    api.spawn(queue, placement={"resources": resources, "isolation": {"cpu": "whole_core"}})
    api.claim(node, queue)
    row = usage(api, node.name)
    assert (row["claims"], row["cpu_milli"], row["cpu_used"]) == (1, 4000, 2000)
    assert (row["memory_mib"], row["memory_used"]) == (1000, 0)
    assert (row["gpus_free"], row["gpu_milli_used"], row["cores_free"]) == (2, 400, 2)
    assert (row["custom"], row["custom_used"]) == ({"license": 3}, {"license": 2})
    row = usage(api, api.node().name)
    assert (row["cpu_milli"], row["memory_mib"], row["slots"]) == (None, None, None)
    assert (row["cpu_used"], row["gpus"], row["gpus_free"], row["cores"]) == (0, 0, 0, 0)


def test_the_states_of_nodes(api: Api, clock: Clock) -> None:
    """And nodes by pages."""
    nodes = {
        state: api.node(heartbeat_timeout="1 hour" if state != "silent" else "5 seconds")
        for state in ("live", "silent", "cordoned", "draining")
    }
    clock.advance(timedelta(minutes=1))
    api.rows("cordon_node", node=nodes["cordoned"].node_id)
    api.rows("drain_node", node=nodes["draining"].node_id, deadline=timedelta(minutes=1))
    for state, node in nodes.items():
        [row] = api.rows("node_usage", state=state)
        assert (row["node_name"], row["state"]) == (node.name, state)
        assert row["live"] == (state != "silent")
    names = sorted(node.name for node in nodes.values())
    pages = [api.rows("node_usage", limit=3, **more) for more in ({}, {"after": names[2]})]
    assert [[row["node_name"] for row in page] for page in pages] == [names[:3], names[3:]]
    assert api.fault("node_usage", state="broken") == "p_state"


def test_labels_are_counted_by_value(api: Api, queue: str, clock: Clock) -> None:
    zones: list[Any] = ["a", "a", "b", 1, ["x"]]
    nodes = [api.node(labels={"zone": zone, "own": n}) for n, zone in enumerate(zones)]
    api.rows("cordon_node", node=nodes[1].node_id)
    api.running(queue, nodes[0])
    rows = api.rows("tag_distribution", label="zone")
    found = [(r["value"], r["nodes"], r["live"], r["claims"]) for r in rows]
    assert found[0] == ("a", 2, 1, 1)
    assert sorted(map(str, found[1:])) == sorted(str((v, 1, 1, 0)) for v in ("b", 1, ["x"]))
    assert [row["value"] for row in api.rows("tag_distribution", limit=1)] == ["a"]
    assert len(api.rows("tag_distribution", label="own")) == 5
    clock.advance(timedelta(minutes=5))
    assert {row["live"] for row in api.rows("tag_distribution", label="zone")} == {0}


def test_classes_tell_what_waits_and_runs(api: Api) -> None:
    queue, other = api.queue(), api.queue()
    node = api.node(labels={"zone": "a"})
    asked = {"require": [{"tags": {"zone": "a"}}]}
    for _ in range(3):
        api.spawn(queue, placement=asked, tenant="film")
    api.claim(node, queue)
    api.rows("reap")  # estimates the reach
    row = api.row("placement_class_stats", queue=queue)
    assert (row["pending"], row["running"], row["profiles"]) == (2, 1, 1)
    assert (row["tenant"], row["task_name"], row["reach"]) == ("film", "work", 1.0)
    assert "zone" in row["words"]
    assert row["placement"]["require"]
    api.spawn(queue, labels={"n": "2"})
    page = api.rows("placement_class_stats", queue=queue, limit=1)
    assert [r["class_id"] for r in page] == [row["class_id"]]
    [last] = api.rows("placement_class_stats", queue=queue, after=row["class_id"])
    assert (last["pending"], last["running"], last["labels"]) == (1, 0, {"n": "2"})
    api.complete(api.running(other))
    row = api.row("placement_class_stats", queue=other)
    assert (row["pending"], row["running"], row["oldest_at"]) == (0, 0, None)


def test_the_view_is_the_function(api: Api) -> None:
    api.node(labels={"zone": "a"})
    api.queue()
    for view in ("queue_depth", "node_usage", "tag_distribution"):
        rows = api.conn.execute(f"select * from hwqueue.{view}".encode()).fetchall()
        assert rows == [tuple(row.values()) for row in api.rows(view)]


def test_views_are_planned_for_what_each_call_asks(api: Api) -> None:
    """A plan for any filter and limit takes 2 s for the usage of 10,000 nodes; it is kept."""
    views = ["metrics", "node_usage", "pending_reasons", "placement_class_stats", "queue_depth"]
    planned = api.conn.execute(
        "select p.proname::text from pg_proc p where p.pronamespace = 'hwqueue'::regnamespace"
        " and p.proname = any (%s) and p.proconfig @> '{plan_cache_mode=force_custom_plan}'"
        " order by 1",
        [views],
    ).fetchall()
    assert [name for (name,) in planned] == views


def test_running_leases_with_their_progress_the_oldest_claims_first(api: Api, clock: Clock) -> None:
    before = {row["lease_id"] for row in api.rows("running_leases", limit=10000)}
    queue, node = api.queue(), api.node()
    first = api.running(queue, node)
    clock.advance(timedelta(seconds=1))
    second = api.running(queue, node, None, tenant="acme")
    [said] = beat(first)
    api.value("report_progress", reports=[said | {"done": 3, "total": 4, "message": "tile 3"}])
    rows = api.rows("running_leases", limit=10000)
    shown, other = [row for row in rows if row["lease_id"] not in before]
    assert [shown["lease_id"], other["lease_id"]] == [first["lease_id"], second["lease_id"]]
    assert (shown["queue"], shown["tenant"], other["tenant"]) == (queue, "", "acme")
    progress = shown["progress"]
    assert (progress["fraction"], progress["done"], progress["message"]) == (0.75, 3, "tile 3")
    assert other["progress"] is None
    assert len(api.rows("running_leases", limit=1)) == 1
    api.complete(first)
    assert shown["lease_id"] not in {row["lease_id"] for row in api.rows("running_leases")}
