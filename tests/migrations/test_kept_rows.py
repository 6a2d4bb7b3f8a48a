"""A database of an earlier release keeps its rows over the upgrade, and they go on working."""

from collections import Counter
from collections.abc import Iterator

import pytest

from tests.migrations.make_release import NODES, QUEUE
from tests.migrations.restored import RELEASES, at_the_time_of, everything, restore_and_upgrade
from tests.oracle.tables import violations
from tests.sql.api import Api, Node, Row, count_all, settlement, token

STATES = {"completed": 1, "failed": 1, "cancelled": 1, "claimed": 3, "scheduled": 2, "pending": 4}


@pytest.fixture(params=RELEASES, ids=lambda path: path.name)
def before(request: pytest.FixtureRequest, empty_dsn: str) -> list[Row]:
    """Restore a release's rows and upgrade; what get_lease said of each lease before."""
    return restore_and_upgrade(request.param, empty_dsn, QUEUE)


@pytest.fixture
def api(before: list[Row], empty_dsn: str) -> Iterator[Api]:
    """The upgraded database, at the time of the dump: what was scheduled then still is."""
    with at_the_time_of(before, empty_dsn) as upgraded:
        yield upgraded


def by_params(rows: list[Row], **params: object) -> Row:
    """The lease that was spawned with these params."""
    [row] = [row for row in rows if row["params"] == params]
    return row


def node(name: str) -> Node:
    """A node of the release; it was registered once."""
    return Node(NODES[name], 1, name)


def test_leases_are_what_they_were(api: Api, before: list[Row]) -> None:
    # columns that came later aside
    assert [
        now | was for now, was in zip(everything(api, QUEUE), before, strict=True)
    ] == everything(api, QUEUE)
    assert Counter(row["state"] for row in before) == STATES
    assert violations(api.conn) == []


def test_what_waits_is_claimed_in_order(api: Api, before: list[Row]) -> None:
    waits = [by_params(before, waits=priority)["lease_id"] for priority in (5, 0, -5)]
    assert api.claim(node("cordoned"), QUEUE) == []
    api.refused("QHN01", "claim_task", queues=[QUEUE], **node("gone").who)
    [first] = api.claimed(node("counted"), QUEUE)
    assert [first, *api.claimed(node("plain"), QUEUE, qty=5)] == waits
    gpu = by_params(before, waits="gpu")["lease_id"]
    [claim] = api.claim(node("devices"), QUEUE, qty=5)
    assert claim["lease_id"] == gpu
    assert claim["assignment"]["gpu_milli"] == 500
    assert violations(api.conn) == []


def test_what_runs_is_settled(api: Api, before: list[Row]) -> None:
    running = [by_params(before, runs=number) for number in (1, 2, 3)]
    for name, row in zip(("counted", "devices", "plain"), running, strict=True):
        [done] = api.rows(
            "settle_and_claim", **node(name).who, settle=[settlement(row)], queues=[QUEUE], qty=0
        )
        assert (done["verdict"], done["state"]) == ("ok", "completed")
    assert violations(api.conn) == []
    used = api.row("list_nodes", name=name_of(api, "counted"))
    assert used["used"].get("cpu_milli", 0) == 0


def test_what_ended_is_requeued_and_pruned(api: Api, before: list[Row]) -> None:
    """Those that ended before the upgrade are found by age like those that end after it."""
    failed = by_params(before, ended="fail")["lease_id"]
    assert api.value("requeue_failed", queue=QUEUE) == 1
    assert api.state(failed) == "pending"
    claims = api.claim(node("plain"), QUEUE, qty=10)
    assert failed in [claim["lease_id"] for claim in claims]
    for claim in claims:
        api.rows("complete_lease", **token(claim))
    api.rows("set_queue_policy", queue=QUEUE, policy={"retain_completed": 0, "retain_failed": 0})
    count_all(api.conn)
    assert api.row("prune")["leases"] == 2 + len(claims)
    left = {row["state"] for row in everything(api, QUEUE)}
    assert left == {"claimed", "scheduled", "pending"}
    row = api.row("spawn_lease", queue=QUEUE, task="work", options={"idempotency_key": "complete"})
    assert row["created"]


def test_nodes_are_what_they_were(api: Api, before: list[Row]) -> None:
    """Registered anew, with the same instance, they keep their epoch and their claims."""
    again = api.node(NODES["plain"], labels={"zone": "a"}, name=name_of(api, "plain"))
    assert again.epoch == 1
    assert len(api.claim(again, QUEUE, qty=10)) == 3
    api.rows("uncordon_node", node=NODES["cordoned"])
    api.spawn(QUEUE)
    assert len(api.claim(node("cordoned"), QUEUE)) == 1


def name_of(api: Api, which: str) -> str:
    """The name under which a node of the release is registered."""
    row = api.conn.execute("select name from hwqueue.node where node_id = %s", [NODES[which]])
    [name] = row.fetchone() or ("",)
    return str(name)
