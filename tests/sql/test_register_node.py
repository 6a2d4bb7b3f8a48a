"""register_node: what a node is, and which of its instances counts."""

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from hwqueue.testing import Clock
from tests.sql.api import NOBODY, Api, Node, beat, token

GPU = [str(uuid4()) for _ in range(4)]


def gpus(*ids: str) -> list[dict[str, Any]]:
    """Devices of a spec."""
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


def test_what_holds_without(api: Api) -> None:
    row = api.used(api.node())
    assert (row["labels"], row["capacity"], row["gpus"]) == ({}, {}, [])
    assert (row["rack"], row["slots"]) == (None, None)


def test_the_same_instance_keeps_epoch_and_claims(api: Api) -> None:
    queue, node = api.queue(), api.node()
    claim = api.running(queue, node)
    assert again(api, node, instance_id="first", labels={"new": 1}).epoch == node.epoch == 1
    assert api.state(claim["lease_id"]) == "claimed"
    assert api.value("complete_lease", **token(claim)) == "completed"


def test_a_new_instance_raises_the_epoch_and_ends_claims(api: Api) -> None:
    queue, node = api.queue(), api.node()
    claim = api.running(queue, node)
    assert again(api, node).epoch == 2
    lease = api.lease(claim["lease_id"])
    assert (lease["state"], lease["attempt"]) == ("pending", 1)
    assert lease["attempts"][0]["outcome"] == "superseded"
    assert lease["attempts"][0]["error"] == {"reason": "node_superseded"}
    api.refused("QHL01", "complete_lease", **token(claim))


def test_the_older_instance_is_fenced(api: Api) -> None:
    queue, node = api.queue(), api.node()
    again(api, node)
    api.spawn(queue)
    calls: dict[str, dict[str, Any]] = {
        "claim_task": {"queues": [queue]},
        "heartbeat_node": {"claims": []},
        "settle_and_claim": {"settle": [], "queues": [queue]},
    }
    for function, arguments in calls.items():
        refusal = api.refused("QHN03", function, **node.who, **arguments)
        assert (refusal.detail["node_epoch"], refusal.detail["given_epoch"]) == (2, 1)


def test_the_last_attempt_ends_with_the_instance(api: Api) -> None:
    node = api.node()
    claim = api.running(api.queue(max_attempts=1), node)
    again(api, node)
    assert api.state(claim["lease_id"]) == "failed"


def test_claims_can_be_kept(api: Api) -> None:
    """They move to the new epoch, with what they had set aside."""
    queue, node = api.queue(), api.node(capacity={"cpu_milli": 1000})
    claim = api.running(queue, node, placement={"resources": {"cpu_milli": 600}})
    new = again(api, node, capacity={"cpu_milli": 1000}, keep_claims=True)
    assert new.epoch == 2
    assert api.used(new)["used"]["cpu_milli"] == 600
    [row] = api.rows("heartbeat_node", **new.who, claims=beat(claim))
    assert row["verdict"] == "ok"
    assert api.value("complete_lease", **token(claim)) == "completed"
    assert api.used(new)["used"]["cpu_milli"] == 0


def test_changed_labels_count_for_the_next_claim(api: Api) -> None:
    queue, node = api.queue(), api.node(labels={"zone": "a"})
    a, b = (api.spawn(queue, affinity_tags={"zone": zone}) for zone in "ab")
    assert api.claimed(node, queue, qty=2) == [a]
    node = again(api, node, instance_id="first", labels={"zone": "b"})
    assert api.claimed(node, queue, qty=2) == [b]
    a = api.spawn(queue, affinity_tags={"zone": "a"})
    assert api.claimed(node, queue) == []
    node = again(api, node, instance_id="first", labels={"zone": "a"})
    assert api.claimed(node, queue) == [a]


def test_less_capacity_than_is_in_use(api: Api) -> None:
    """What runs goes on; nothing new until enough of it has ended."""
    queue, node = api.queue(), api.node(capacity={"cpu_milli": 4000})
    need: dict[str, Any] = {"resources": {"cpu_milli": 2000}}
    first, second = (api.running(queue, node, placement=need) for _ in range(2))
    small = again(api, node, instance_id="first", capacity={"cpu_milli": 3000})
    waiting = api.needing(queue, cpu_milli=1000)
    assert api.claimed(small, queue) == []
    assert api.used(small)["used"]["cpu_milli"] == 4000
    api.rows("complete_lease", **token(first))
    assert api.claimed(small, queue) == [waiting]
    api.rows("complete_lease", **token(second))
    assert api.used(small)["used"]["cpu_milli"] == 1000


def test_what_has_expired_is_in_use_until_it_is_reaped(api: Api, clock: Clock) -> None:
    """A registration counts it as well: its handlers may still be at work."""
    queue, node = api.queue(claim_timeout=60), api.node(capacity={"cpu_milli": 1000})
    api.running(queue, node, placement={"resources": {"cpu_milli": 800}})
    clock.advance(timedelta(minutes=5))
    api.node(node.node_id, name=node.name, capacity={"cpu_milli": 1500})
    api.needing(queue, cpu_milli=800)
    assert api.claim(node, queue) == []
    assert api.used(node)["used"]["cpu_milli"] == 800


def test_a_device_that_is_gone_needs_nothing_back(api: Api) -> None:
    """Usage follows the device, not its place in the list."""
    queue, node = api.queue(), api.node(gpus=gpus(*GPU[:2]))
    share = {"resources": {"gpu_milli": 700}}
    first, second = (api.running(queue, node, placement=share) for _ in range(2))
    assert [c["assignment"]["gpus"][0]["index"] for c in (first, second)] == [0, 1]
    node = again(api, node, instance_id="first", gpus=gpus(GPU[2], GPU[1]))
    assert [gpu["milli_used"] for gpu in api.used(node)["gpus"]] == [0, 700]
    api.rows("complete_lease", **token(first))
    assert [gpu["milli_used"] for gpu in api.used(node)["gpus"]] == [0, 700]
    api.rows("complete_lease", **token(second))
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
    api.rows("complete_lease", **token(first))
    assert len(api.claim(node, queue, qty=5)) == 1


def test_a_name_has_one_node(api: Api) -> None:
    node = api.node()
    spec = {"name": node.name, "instance_id": "x"}
    refusal = api.refused("QHN02", "register_node", node=uuid4(), spec=spec)
    assert (refusal.field, refusal.detail["name"]) == ("spec.name", node.name)
    api.rows("deregister_node", node=node.node_id)
    assert api.node(name=node.name).epoch == 1


def test_a_node_can_be_renamed(api: Api) -> None:
    node = api.node()
    renamed = api.node(node.node_id, name=f"{node.name}-b")
    assert (renamed.epoch, api.used(renamed)["node_id"]) == (1, node.node_id)
    assert api.rows("list_nodes", name=node.name) == []


@pytest.mark.parametrize("pruned", [False, True])
def test_deregistered_and_back_it_stays_fenced(api: Api, clock: Clock, pruned: bool) -> None:
    """The epoch goes on, even when the node's record is long gone."""
    node = api.node()
    api.rows("deregister_node", node=node.node_id)
    if pruned:
        clock.advance(timedelta(days=31))
        assert api.row("prune")["nodes"] >= 1
    back = again(api, node, instance_id="first")
    assert back.epoch == 2
    api.refused("QHN03", "heartbeat_node", **node.who)


def test_an_operators_hold_stays(api: Api) -> None:
    node = api.node()
    api.rows("drain_node", node=node.node_id, deadline=timedelta(hours=1))
    row = api.used(again(api, node))
    assert (row["cordoned"], row["draining"]) == (True, True)


def test_no_node(api: Api) -> None:
    spec = {"name": "n", "instance_id": "x"}
    assert api.refused("QHA01", "register_node", node=None, spec=spec).field == "p_node"


@pytest.mark.parametrize(
    ("field", "spec"),
    [
        ("spec.name", {"name": None}),
        ("spec.name", {"name": "a b"}),
        ("spec.name", {"name": "x" * 254}),
        ("spec.name", {"name": 7}),
        ("spec.instance_id", {"instance_id": None}),
        ("spec.instance_id", {"instance_id": ""}),
        ("spec.instance_id", {"instance_id": "x" * 129}),
        ("spec.heartbeat_timeout", {"heartbeat_timeout": 0}),
        ("spec.heartbeat_timeout", {"heartbeat_timeout": "1 month"}),
        ("spec.labels", {"labels": ["a"]}),
        ("spec.labels", {"labels": {"": 1}}),
        ("spec.labels", {"labels": {"x" * 254: 1}}),
        ("spec.labels", {"labels": {str(n): n for n in range(257)}}),
        ("spec.labels", {"labels": {"long": "x" * 65536}}),
        ("spec.rack", {"rack": -1}),
        ("spec.rack", {"rack": 2**32}),
        ("spec.rack", {"rack": "r1"}),
        ("spec.capacity", {"capacity": [1]}),
        ("spec.capacity", {"capacity": {f"c{n}": 1 for n in range(65)}}),
        ("spec.capacity.cpu_milli", {"capacity": {"cpu_milli": -1}}),
        ("spec.capacity.cpu_milli", {"capacity": {"cpu_milli": 0.5}}),
        ("spec.capacity.memory_mib", {"capacity": {"memory_mib": 10**13}}),
        ("spec.capacity.memory_mib", {"capacity": {"memory_mib": "1 GiB"}}),
        ("spec.capacity.license", {"capacity": {"license": -1}}),
        ("spec.capacity.License", {"capacity": {"License": 1}}),
        ("spec.capacity.gpu", {"capacity": {"gpu": 1}}),
        ("spec.cores", {"cores": {}}),
        ("spec.gpus", {"gpus": {}}),
        ("spec.gpus[0]", {"gpus": ["T4"]}),
        ("spec.gpus[0].resource_id", {"gpus": [{}]}),
        ("spec.gpus[0].resource_id", {"gpus": gpus("T4")}),
        ("spec.gpus[1].resource_id", {"gpus": gpus(GPU[0], GPU[0])}),
        ("spec.gpus[0].memory_mib", {"gpus": [{"resource_id": GPU[0], "memory_mib": -1}]}),
        ("spec.gpus[0].model", {"gpus": [{"resource_id": GPU[0], "model": "x" * 201}]}),
        ("spec.gpus[0].colour", {"gpus": [{"resource_id": GPU[0], "colour": "red"}]}),
        ("spec.resources", {"resources": {}}),
        ("spec.resources[0]", {"resources": ["disk"]}),
        ("spec.slots", {"slots": -1}),
        ("spec.keep_claims", {"keep_claims": "yes"}),
        ("spec.size", {"size": "large"}),
    ],
)
@pytest.mark.thorough
def test_bad_specs(api: Api, field: str, spec: dict[str, Any]) -> None:
    spec = {"name": "bad", "instance_id": "first"} | spec
    assert api.refused("QHA01", "register_node", node=uuid4(), spec=spec).field == field


TAINT = {"key": "x", "effect": "no_schedule"}


@pytest.mark.parametrize(
    ("field", "taints"),
    [
        ("spec.taints", {}),
        ("spec.taints", [TAINT | {"key": f"k{number}"} for number in range(101)]),
        ("spec.taints", [TAINT, TAINT | {"value": "y"}]),
        ("spec.taints[1].effect", [TAINT, TAINT | {"effect": "evict"}]),
        ("spec.taints[0].key", [{"effect": "no_schedule"}]),
    ],
)
def test_bad_taints(api: Api, field: str, taints: object) -> None:
    spec = {"name": "bad", "instance_id": "first", "taints": taints}
    assert api.refused("QHA01", "register_node", node=uuid4(), spec=spec).field == field


@pytest.mark.parametrize("spec", [None, [], "node", 7])
def test_a_spec_is_an_object(api: Api, spec: object) -> None:
    assert api.refused("QHA01", "register_node", node=uuid4(), spec=spec).field == "spec"


def test_empty_lists_of_it_are_fine(api: Api) -> None:
    node = api.node(taints=[], cpu_isolation=[], gpu_exclusivity=[], default_cpu_isolation=None)
    assert isinstance(node.node_id, UUID)


def test_a_node_is_silent_within_a_day(api: Api) -> None:
    """Else what runs on a lost machine would never be found."""
    spec = {"name": "patient", "instance_id": "i"}
    too_long = spec | {"heartbeat_timeout": "25 hours"}
    refusal = api.refused("QHA01", "register_node", node=NOBODY, spec=too_long)
    assert refusal.field == "spec.heartbeat_timeout"
