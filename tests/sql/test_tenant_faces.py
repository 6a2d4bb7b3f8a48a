"""What tenants use, beside what they may, and who was preempted for whom."""

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.sql.api import Api, token
from tests.sql.gangs import GPU, clear, gpus, reap

TIER = {"film": "guaranteed", "lab": "scavenger"}


@pytest.fixture(autouse=True)
def _tenants(api: Api) -> Iterator[None]:
    """Two with a row, and one for all others; nobody has one after the test."""
    clear(api)
    for name, tier in (*TIER.items(), ("*", "best_effort")):
        api.value("set_tenant", name=name, changes={"tier": tier})
    yield
    for row in api.rows("list_tenants"):
        api.rows("drop_tenant", name=row["name"])
    for row in api.rows("list_queues"):
        api.rows("drop_queue", queue=row["queue"], force=True)


def used(api: Api, **asked: Any) -> dict[str, Row]:
    """What tenants use, by name."""
    return {row["tenant"]: row for row in api.rows("tenant_usage", **asked)}


def test_what_waits_runs_and_started_beside_what_the_weights_give(api: Api, clock: Clock) -> None:
    """Of each tier for itself; what began long ago counts among what runs alone."""
    queue, node = api.queue(), api.node()
    api.value("set_tenant", name="film", changes={"weight": 3, "slots": 2})
    for _ in range(2):
        api.complete(api.running(queue, node, tenant="film"))
    old = api.running(queue, node, tenant="lab", claim_timeout=86_400)
    clock.advance(timedelta(hours=2))
    runs = [api.running(queue, node, tenant="film") for _ in range(2)]
    [api.spawn(queue, tenant="film") for _ in range(3)]
    api.complete(api.running(queue, node))
    api.rows("release_lease", **token(api.running(queue, node, tenant="other")), delay=timedelta(hours=1))
    api.spawn(queue, tenant="another")
    reap(api)
    found = used(api)
    assert [*found][:1] == ["film"], "the busiest first"
    counts = ("pending", "parked", "running", "started", "classes")
    assert {name: tuple(row[each] for each in counts) for name, row in found.items() if name != ""} == {
        "film": (3, 3, 2, 2, 1),
        "lab": (0, 0, 1, 0, 1),
        "other": (1, 0, 0, 1, 1),
        "another": (1, 0, 0, 0, 1),
        "*": (0, 0, 0, 0, 0),
    }
    assert found["film"]["spec"]["slots"] == 2
    assert (found["other"]["tier"], found[""]["tier"]) == ("best_effort", "guaranteed")
    of_tier = {name: (row["share"], row["due"]) for name, row in found.items()}
    assert of_tier["film"] == (2 / 3, 3 / 4), "the lease of no tenant began, too"
    assert (of_tier["other"], of_tier["another"]) == ((1, 1 / 2), (0, 1 / 2))
    assert of_tier["lab"] == (None, None), "nothing of its tier began or waits"
    assert list(used(api, name="lab")) == ["lab"]
    assert len(used(api, limit=2)) == 2
    assert (old["attempt"], len(runs)) == (1, 2)
    for wrong in (0, 10_001):
        assert api.fault("tenant_usage", limit=wrong) == "p_limit"


def test_who_was_preempted_for_whom(api: Api) -> None:
    """From either side and by lease, the newest first; other stops are none."""
    queue = api.queue(preempt={"after": 0, "grace": 30}, retry={"kind": "none"})
    node = api.node(gpus=gpus(2))
    victims = [api.running(queue, node, tenant="lab", **GPU)["lease_id"] for _ in range(2)]
    for_whom = []
    for _ in victims:
        for_whom.append(api.spawn(queue, tenant="film", **GPU))
        reap(api)
    metrics = {
        (row["name"], row["labels"]["state"]): row["value"]
        for row in api.rows("metrics")
        if row["name"] == "hwqueue_preempted_claims"
    }
    assert metrics == {
        ("hwqueue_preempted_claims", "asked"): 2,
        ("hwqueue_preempted_claims", "overdue"): 0,
    }
    found = api.rows("list_preemptions")
    assert [row["for_lease"] for row in found] == for_whom[::-1]
    assert {row["lease_id"] for row in found} == {*victims}
    whose = {
        (row["node_id"], row["tenant"], row["tier"], row["for_tenant"], row["for_tier"]) for row in found
    }
    assert whose == {(node.node_id, "lab", "scavenger", "film", "guaranteed")}
    assert found[0]["stop_by"] - found[0]["at"] == timedelta(seconds=30)
    assert api.rows("list_preemptions", tenant="lab") == api.rows("list_preemptions", tenant="film") == found
    assert api.rows("list_preemptions", tenant="other") == []
    assert api.rows("list_preemptions", lease=victims[0], limit=1) == [
        row for row in found if row["lease_id"] == victims[0]
    ]
    api.rows("drain_node", node=api.node().node_id, deadline=timedelta(0))
    assert api.fault("list_preemptions", limit=0) == "p_limit"


def test_tiers_among_the_metrics(api: Api) -> None:
    """By what their tenants are now; without tenants there are no samples."""

    def tiers() -> Counter[str]:
        rows = [row for row in api.rows("metrics") if row["name"] == "hwqueue_tier_leases"]
        return Counter({" ".join(row["labels"].values()): int(row["value"]) for row in rows})

    queue, node, before = api.queue(), api.node(), tiers()
    assert len(before) == 6
    for name in ("film", "lab", "lab", "other"):
        api.running(queue, node, tenant=name)
    for name in (*TIER, "lab"):
        api.spawn(queue, tenant=name)
    api.spawn(queue, delay=3600)
    assert tiers() - before == {
        "guaranteed waiting": 2,
        "guaranteed claimed": 1,
        "best_effort claimed": 1,
        "scavenger waiting": 2,
        "scavenger claimed": 2,
    }
    for name in (*TIER, "*"):
        api.rows("drop_tenant", name=name)
    assert tiers() == {}


def test_nodes_say_whom_they_are_for(api: Api) -> None:
    node, open_to_all = api.node(), api.node()
    api.rows("set_node_tenants", node=node.node_id, tenants=["lab", "film"])
    found = {row["node_id"]: row["tenants"] for row in api.rows("node_usage")}
    assert (found[node.node_id], found[open_to_all.node_id]) == (["film", "lab"], [])
