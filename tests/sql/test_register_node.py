"""register_node: what a node is, and which of its instances counts."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from hwqueue.testing import Clock
from tests.sql.api import Api, Node, beat, token

GPU = [str(uuid4()) for _ in range(4)]


def gpus(*ids: str) -> list[dict[str, Any]]:
    return [{"resource_id": i, "model": "T4", "memory_mib": 16384} for i in ids]


def again(api: Api, node: Node, **spec: Any) -> Node:
    """Register the node anew, as the instance `second` unless the spec says otherwise."""
    return api.node(node.node_id, **{"name": node.name, "instance_id": "second"} | spec)


def test_what_it_says_is_kept(api: Api, clock: Clock) -> None:
    node = api.node(
        labels={"zone": "a", "weight": 1.50, "parts": {"n": [1.0]}},
        rack=7,
        capacity={"cpu_milli": 64000, "memory_mib": 1024, "license": 3},
        gpus=gpus(GPU[0]),
        resources=[str(uuid4())],
        slots=5,
        heartbeat_timeout="30 seconds",
        cores=[{"core": 0, "numa": 0, "threads": [0, 1]}],
    )
    row = api.used(node)
    assert row["labels"] == {"zone": "a", "weight": 1.5, "parts": {"n": [1]}}
    assert (row["rack"], row["slots"], row["node_epoch"]) == (7, 5, 1)
    assert row["capacity"] == {"cpu_milli": 64000, "memory_mib": 1024, "license": 3}
    assert row["gpus"] == [gpus(GPU[0])[0] | {"milli_used": 0}]
    assert (row["live"], row["registered_at"]) == (True, clock.now())
    nothing: dict[str, Any] = {"taints": [], "cpu_isolation": [], "gpu_exclusivity": []}
    for node in (api.node(), api.node(**nothing, default_cpu_isolation=None)):
        row = api.used(node)
        assert (row["labels"], row["capacity"], row["gpus"]) == ({}, {}, [])
        assert (row["rack"], row["slots"]) == (None, None)


@pytest.mark.parametrize("kept", [{"instance_id": "first"}, {"keep_claims": True}])
def test_claims_can_be_kept(api: Api, kept: dict[str, Any]) -> None:
    """By the same instance always, else if it asks; with what they had set aside."""
    queue, node = api.queue(), api.node(capacity={"cpu_milli": 1000})
    claim = api.running(queue, node, placement={"resources": {"cpu_milli": 600}})
    new = again(api, node, capacity={"cpu_milli": 1000}, labels={"new": 1}, **kept)
    assert new.epoch == (2 if "keep_claims" in kept else 1)
    assert api.used(new)["used"]["cpu_milli"] == 600
    [row] = api.rows("heartbeat_node", **new.who, claims=beat(claim))
    assert row["verdict"] == "ok"
    assert api.value("complete_lease", **token(claim)) == "completed"
    assert api.used(new)["used"]["cpu_milli"] == 0


def test_a_new_instance_raises_the_epoch_and_ends_claims(api: Api, queue: str, node: Node) -> None:
    """The older instance is fenced."""
    claim = api.running(queue, node)
    last = api.running(queue, node, max_attempts=1)
    assert again(api, node).epoch == 2
    lease = api.lease(claim["lease_id"])
    assert (lease["state"], lease["attempt"]) == ("pending", 1)
    assert lease["attempts"][0]["outcome"] == "superseded"
    assert lease["attempts"][0]["error"] == {"reason": "node_superseded"}
    assert api.state(last["lease_id"]) == "failed"
    api.refused("QHL01", "complete_lease", **token(claim))
    calls: dict[str, dict[str, Any]] = {
        "claim_task": {"queues": [queue]},
        "heartbeat_node": {"claims": []},
        "settle_and_claim": {"settle": [], "queues": [queue]},
    }
    for function, arguments in calls.items():
        refusal = api.refused("QHN03", function, **node.who, **arguments)
        assert (refusal.detail["node_epoch"], refusal.detail["given_epoch"]) == (2, 1)


def test_less_capacity_than_is_in_use(api: Api, clock: Clock) -> None:
    """What runs goes on, expired or not, until it is reaped; nothing new until enough of it has ended."""
    queue, node = api.queue(claim_timeout=60), api.node(capacity={"cpu_milli": 4000})
    need: dict[str, Any] = {"resources": {"cpu_milli": 2000}}
    first, second = (api.running(queue, node, placement=need) for _ in range(2))
    clock.advance(timedelta(minutes=5))
    small = again(api, node, instance_id="first", capacity={"cpu_milli": 3000})
    waiting = api.needing(queue, cpu_milli=1000)
    assert api.claimed(small, queue) == []
    assert api.used(small)["used"]["cpu_milli"] == 4000
    api.complete(first)
    assert api.claimed(small, queue) == [waiting]
    api.complete(second)
    assert api.used(small)["used"]["cpu_milli"] == 1000


def test_a_device_that_is_gone_needs_nothing_back(api: Api) -> None:
    """Usage follows the device, not its place in the list."""
    queue, node = api.queue(), api.node(gpus=gpus(*GPU[:2]))
    share = {"resources": {"gpu_milli": 700}}
    first, second = (api.running(queue, node, placement=share) for _ in range(2))
    assert [c["assignment"]["gpus"][0]["index"] for c in (first, second)] == [0, 1]
    node = again(api, node, instance_id="first", gpus=gpus(GPU[2], GPU[1]))
    assert [gpu["milli_used"] for gpu in api.used(node)["gpus"]] == [0, 700]
    api.complete(first)
    assert [gpu["milli_used"] for gpu in api.used(node)["gpus"]] == [0, 700]
    api.complete(second)
    assert [gpu["milli_used"] for gpu in api.used(node)["gpus"]] == [0, 0]


@pytest.mark.parametrize(
    "counted", [{"slots": 2}, {"capacity": {"cpu_milli": 8000}}, {"capacity": {"license": 2}}]
)
def test_what_it_counts_only_now(api: Api, counted: dict[str, Any]) -> None:
    """What runs already counts, with its amounts; when it ends there is room again."""
    queue, node = api.queue(), api.node()
    resources = {"cpu_milli": 4000}
    if "license" in counted.get("capacity", {}):
        resources["license"] = 1
        node = again(api, node, instance_id="first", capacity={"license": 5})
    for _ in range(3):
        api.needing(queue, **resources)
    first, second = api.claim(node, queue, qty=2)
    node = again(api, node, instance_id="first", **counted)
    assert api.claim(node, queue) == []
    assert (api.used(node)["claims"], api.state(second["lease_id"])) == (2, "claimed")
    if "cpu_milli" in counted.get("capacity", {}):
        assert api.used(node)["used"]["cpu_milli"] == 8000
    api.complete(first)
    assert len(api.claim(node, queue, qty=5)) == 1


def test_a_name_has_one_node(api: Api, node: Node) -> None:
    spec = {"name": node.name, "instance_id": "x"}
    refusal = api.refused("QHN02", "register_node", node=uuid4(), spec=spec)
    assert (refusal.field, refusal.detail["name"]) == ("spec.name", node.name)
    renamed = api.node(node.node_id, name=f"{node.name}-b")
    assert (renamed.epoch, api.used(renamed)["node_id"]) == (1, node.node_id)
    assert api.rows("list_nodes", name=node.name) == []
    api.rows("deregister_node", node=node.node_id)
    assert api.node(name=renamed.name).epoch == 1


@pytest.mark.parametrize("pruned", [False, True])
def test_deregistered_and_back_it_stays_fenced(api: Api, node: Node, clock: Clock, pruned: bool) -> None:
    """The epoch goes on, even when the node's record is long gone; an operator's hold stays."""
    api.rows("drain_node", node=node.node_id, deadline=timedelta(hours=1))
    row = api.used(again(api, node))
    assert (row["cordoned"], row["draining"]) == (True, True)
    api.rows("deregister_node", node=node.node_id)
    if pruned:
        clock.advance(timedelta(days=31))
        assert api.row("prune")["nodes"] >= 1
    assert again(api, node).epoch == 3
    for epoch in (1, 2):
        api.refused("QHN03", "heartbeat_node", node=node.node_id, epoch=epoch)


TAINT = {"key": "x", "effect": "no_schedule"}
BAD: list[tuple[str, dict[str, Any]]] = [
    ("name", {"name": None}),
    ("name", {"name": "a b"}),
    ("name", {"name": "x" * 254}),
    ("name", {"name": 7}),
    ("instance_id", {"instance_id": None}),
    ("instance_id", {"instance_id": ""}),
    ("instance_id", {"instance_id": "x" * 129}),
    ("heartbeat_timeout", {"heartbeat_timeout": 0}),
    ("heartbeat_timeout", {"heartbeat_timeout": "1 month"}),
    ("heartbeat_timeout", {"heartbeat_timeout": "25 hours"}),  # else lost machines would never be found
    ("labels", {"labels": ["a"]}),
    ("labels", {"labels": {"": 1}}),
    ("labels", {"labels": {"x" * 254: 1}}),
    ("labels", {"labels": {str(n): n for n in range(257)}}),
    ("labels", {"labels": {"long": "x" * 65536}}),
    ("rack", {"rack": -1}),
    ("rack", {"rack": 2**32}),
    ("rack", {"rack": "r1"}),
    ("capacity", {"capacity": [1]}),
    ("capacity", {"capacity": {f"c{n}": 1 for n in range(65)}}),
    ("capacity.cpu_milli", {"capacity": {"cpu_milli": -1}}),
    ("capacity.cpu_milli", {"capacity": {"cpu_milli": 0.5}}),
    ("capacity.memory_mib", {"capacity": {"memory_mib": 10**13}}),
    ("capacity.memory_mib", {"capacity": {"memory_mib": "1 GiB"}}),
    ("capacity.license", {"capacity": {"license": -1}}),
    ("capacity.License", {"capacity": {"License": 1}}),
    ("capacity.gpu", {"capacity": {"gpu": 1}}),
    ("cores", {"cores": {}}),
    ("gpus", {"gpus": {}}),
    ("gpus[0]", {"gpus": ["T4"]}),
    ("gpus[0].resource_id", {"gpus": [{}]}),
    ("gpus[0].resource_id", {"gpus": gpus("T4")}),
    ("gpus[1].resource_id", {"gpus": gpus(GPU[0], GPU[0])}),
    ("gpus[0].memory_mib", {"gpus": [{"resource_id": GPU[0], "memory_mib": -1}]}),
    ("gpus[0].model", {"gpus": [{"resource_id": GPU[0], "model": "x" * 201}]}),
    ("gpus[0].colour", {"gpus": [{"resource_id": GPU[0], "colour": "red"}]}),
    ("resources", {"resources": {}}),
    ("resources[0]", {"resources": ["disk"]}),
    ("slots", {"slots": -1}),
    ("keep_claims", {"keep_claims": "yes"}),
    ("size", {"size": "large"}),
    ("taints", {"taints": {}}),
    ("taints", {"taints": [TAINT | {"key": f"k{number}"} for number in range(101)]}),
    ("taints", {"taints": [TAINT, TAINT | {"value": "y"}]}),
    ("taints[1].effect", {"taints": [TAINT, TAINT | {"effect": "evict"}]}),
    ("taints[0].key", {"taints": [{"effect": "no_schedule"}]}),
]


@pytest.mark.parametrize(("field", "spec"), BAD)
@pytest.mark.thorough
@pytest.mark.every_variant
def test_bad_specs(api: Api, field: str, spec: dict[str, Any]) -> None:
    spec = {"name": "bad", "instance_id": "first"} | spec
    assert api.refused("QHA01", "register_node", node=uuid4(), spec=spec).field == f"spec.{field}"


def test_no_node_and_no_spec(api: Api) -> None:
    good = {"name": "n", "instance_id": "x"}
    assert api.refused("QHA01", "register_node", node=None, spec=good).field == "p_node"
    spec: Any
    for spec in (None, [], "node", 7):
        assert api.refused("QHA01", "register_node", node=uuid4(), spec=spec).field == "spec"
