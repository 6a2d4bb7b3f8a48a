"""Views for operators: what waits and runs, on which nodes, and what became of a lease."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.sql.api import NOBODY, Api, beat, token
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
    assert (last["pending"], last["running"], last["labels"]) == (1, 0, {})  # no term selects by it
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


SECOND = timedelta(seconds=1)


def line(api: Api, lease: UUID) -> list[str]:
    """What happened, in order."""
    return [row["event"] for row in api.rows("lease_history", lease=lease)]


def test_from_spawn_to_the_end(api: Api, clock: Clock) -> None:
    queue = api.queue(retry={"kind": "fixed", "base": 10, "jitter": 0})
    node, other = api.node(heartbeat_timeout="1 hour"), api.node(heartbeat_timeout="1 hour")
    began = clock.now()
    lease = api.spawn(queue)
    assert line(api, lease) == ["spawned", "ready"]
    clock.advance(3 * SECOND)
    [claim] = api.claim(node, queue)
    clock.advance(2 * SECOND)
    assert line(api, lease) == ["spawned", "claimed"]
    api.rows("fail_lease", **token(claim), error={"message": "it broke"})
    assert line(api, lease) == ["spawned", "claimed", "failed", "scheduled"]
    clock.advance(10 * SECOND)
    [claim] = api.claim(other, queue)
    clock.advance(SECOND)
    api.complete(claim)
    rows = api.rows("lease_history", lease=lease)
    columns = ("ordinal", "event", "at", "lasted", "node_name", "attempt")
    assert [tuple(row[column] for column in columns) for row in rows] == [
        (1, "spawned", began, 3 * SECOND, None, None),
        (2, "claimed", began + 3 * SECOND, 2 * SECOND, node.name, 1),
        (3, "failed", began + 5 * SECOND, 10 * SECOND, node.name, 1),
        (4, "claimed", began + 15 * SECOND, SECOND, other.name, 2),
        (5, "completed", began + 16 * SECOND, None, other.name, 2),
    ]
    assert (rows[2]["detail"], rows[4]["claim_token"]) == ({"message": "it broke"}, claim["claim_token"])


def test_one_that_waits_for_its_time(api: Api, clock: Clock) -> None:
    lease = api.spawn(api.queue(), delay=60)
    spawned, scheduled = api.rows("lease_history", lease=lease)
    assert (spawned["event"], scheduled["event"]) == ("spawned", "scheduled")
    assert scheduled["at"] == clock.now() + 60 * SECOND
    assert scheduled["lasted"] == 0 * SECOND


def test_released_then_dead_after_its_last_attempt(api: Api, clock: Clock) -> None:
    queue, node = api.queue(max_attempts=1), api.node(heartbeat_timeout="1 hour")
    claim = api.running(queue, node)
    lease = claim["lease_id"]
    clock.advance(SECOND)
    api.rows("release_lease", **token(claim))
    assert line(api, lease) == ["spawned", "claimed", "released", "ready"]
    [claim] = api.claim(node, queue)
    api.rows("fail_lease", **token(claim), error={"message": "x"})
    rows: list[Row] = api.rows("lease_history", lease=lease)
    # the attempt failed, and with it the lease
    assert [row["event"] for row in rows][-3:] == ["claimed", "failed", "failed"]
    assert (rows[-1]["lasted"], rows[-1]["detail"]) == (None, {"message": "x"})


def test_the_view_finds_one_lease(api: Api, queue: str) -> None:
    other, lease = api.spawn(queue), api.spawn(queue)
    api.rows("cancel_lease", lease=lease, reason="not needed")
    rows = api.rows("lease_history", lease=lease)
    assert [(row["ordinal"], row["event"]) for row in rows] == [(1, "spawned"), (2, "cancelled")]
    assert rows[1]["detail"]["detail"] == "not needed"
    view = "select ordinal, event from hwqueue.lease_history where lease_id = %s order by ordinal"
    assert api.conn.execute(view, [lease]).fetchall() == [(1, "spawned"), (2, "cancelled")]
    assert api.conn.execute(view, [other]).fetchall() == [(1, "spawned"), (2, "ready")]
    api.refused("QHL04", "lease_history", lease=NOBODY)
