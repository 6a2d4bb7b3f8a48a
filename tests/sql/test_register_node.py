"""Nodes register, are cordoned and drained, and confirmed when another instance came."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.sql.api import NOBODY, Api, Node, beat, token
from tests.sql.logins import OPERATOR, WORKER, Logins
from tests.sql.placed import reasons, spawn_placed

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


@pytest.mark.parametrize("function", ["cordon_node", "drain_node"])
def test_a_cordoned_node_gets_nothing_new(api: Api, queue: str, node: Node, function: str) -> None:
    """What runs may finish; drained without a deadline, too."""
    claim = api.running(queue, node)
    api.rows(function, node=node.node_id)
    waiting, other = api.spawn(queue), api.spawn(queue)
    assert api.claimed(node, queue) == []
    assert api.claimed(api.node(), queue) == [waiting]  # others go on
    assert api.verdicts(node, claim) == ["ok"]
    assert (api.used(node)["cordoned"], api.used(node)["draining"]) == (True, False)
    assert api.value("complete_lease", **token(claim)) == "completed"
    api.rows("uncordon_node", node=node.node_id)
    assert not api.used(node)["cordoned"]
    assert api.claimed(node, queue) == [other]


def test_with_a_deadline_claims_are_preempted(api: Api, queue: str, node: Node) -> None:
    """Not cancelled: handed back a lease may run elsewhere, finished it is finished."""
    back, done, cancelled = (api.running(queue, node) for _ in range(3))
    api.rows("cancel_lease", lease=cancelled["lease_id"])
    api.rows("drain_node", node=node.node_id, deadline=timedelta(minutes=5))
    assert api.used(node)["draining"]
    assert api.verdicts(node, back, done, cancelled) == ["preempted", "preempted", "cancelled"]
    assert api.lease(back["lease_id"])["stop_reason"] == "preempted"
    assert api.value("release_lease", **token(back)) == "pending"
    assert api.value("complete_lease", **token(done)) == "completed"
    assert api.claimed(api.node(), queue) == [back["lease_id"]]
    api.rows("uncordon_node", node=node.node_id)
    lease = api.spawn(queue)
    assert api.claimed(node, queue) == [lease]
    assert not api.used(node)["draining"]
    for days in (-1, 3651):
        assert api.fault("drain_node", node=node.node_id, deadline=timedelta(days=days)) == "p_deadline"


def test_twice_is_once(api: Api, node: Node) -> None:
    """For a node that there is."""
    for function in ("cordon_node", "uncordon_node"):
        api.rows(function, node=node.node_id)
        with api.unchanged():
            api.rows(function, node=node.node_id)
    api.rows("deregister_node", node=node.node_id)
    for function in ("cordon_node", "uncordon_node", "drain_node"):
        for unknown in (NOBODY, node.node_id):
            refusal = api.refused("QHN01", function, node=unknown)
            assert refusal.detail["node_id"] == str(unknown)


PROD: list[Row] = [{"trust": "acme.prod"}]


def trusted(api: Api, **more: Any) -> Node:
    node = api.node()
    api.rows("attest_node", node=node.node_id, domain="acme.prod", **more)
    return node


def by_another(api: Api, node: Node, instance: str = "second", **spec: Any) -> Node:
    """The node, registered by another instance."""
    return api.node(node.node_id, name=node.name, instance_id=instance, **spec)


def attested(api: Api, node: Node) -> Row:
    """The node's only attestation as it is listed."""
    [only] = api.used(node)["attestations"]
    assert isinstance(only, dict)
    return only


def codes_of(api: Api, node: Node) -> list[str]:
    return [event["code"] for event in api.rows("list_events", filter={"node": str(node.node_id)})]


def test_another_instance_is_not_trusted_until_confirmed(api: Api, clock: Clock) -> None:
    queue, node = api.queue(), trusted(api)
    lease = spawn_placed(api, queue, require=PROD)
    second = by_another(api, node)
    assert api.claimed(second, queue) == []
    [reason] = reasons(api, second, require=PROD)
    assert reason["code"] == "trust_not_attested"
    assert reason["message"] == (
        'trust "acme.prod" is not attested since it registered again as instance "second":'
        " hwqueue node confirm"
    )
    listed = attested(api, second)
    assert listed["suspended_why"] == 'it registered again as instance "second"'
    assert listed["suspended_at"] is not None
    near = api.row("explain_lease", lease=lease)["nearest"]
    [has] = [r["has"] for n in near if n["node"] == node.name for r in n["reasons"]]
    assert "since it registered again" in has
    assert api.value("confirm_node", node=node.node_id, instance_id="second") == 1
    assert attested(api, second)["suspended_at"] is None
    assert api.claimed(second, queue) == [lease]
    assert codes_of(api, node)[:2] == ["node_confirmed", "node_superseded"]
    assert "node_trust_suspended" in codes_of(api, node)


def test_the_same_instance_stays_trusted_until_another_one_was_there(api: Api) -> None:
    """Nobody knows what the other one did to the machine; what runs goes on with keep_claims."""
    queue, node = api.queue(), trusted(api)
    lease = spawn_placed(api, queue, require=PROD)
    same = by_another(api, node, "first", labels={"a": 1})
    claim = api.granted(lease, same, queue)
    assert api.value("confirm_node", node=node.node_id) == 0
    spawn_placed(api, queue, require=PROD)
    assert api.verdicts(by_another(api, node, keep_claims=True), claim) == ["ok"]
    assert api.claimed(by_another(api, node, "first"), queue) == []


def test_any_instance_of_the_login(api: Api, logins: Logins) -> None:
    """As where every trusted node has a login of its own."""
    login, owner = logins.api(WORKER)
    queue, node = api.queue(), owner.node()
    api.rows("attest_node", node=node.node_id, domain="acme.prod", any_instance=True)
    lease = spawn_placed(api, queue, require=PROD)
    second = by_another(owner, node)
    assert owner.claimed(second, queue) == [lease]
    assert attested(api, second)["any_instance"] is True
    other_login, other = logins.api(WORKER)
    api.rows("hand_over_node", node=node.node_id, login=other_login)
    spawn_placed(api, queue, require=PROD)
    assert other.claimed(second, queue) == []  # another login is another matter
    assert attested(api, second)["suspended_why"] == f'it was handed over to login "{other_login}"'
    api.rows("hand_over_node", node=node.node_id, login=login)
    assert owner.claimed(second, queue) == []
    assert api.value("confirm_node", node=node.node_id) == 1
    assert len(owner.claimed(second, queue)) == 1


def test_a_node_without_a_login_is_not_trusted_once_one_registers(api: Api) -> None:
    """With the same instance_id, too: it is not known who chose that."""
    queue, node = api.queue(), trusted(api, any_instance=True)
    api.conn.execute("update hwqueue.node_state set login = null")
    lease = spawn_placed(api, queue, require=PROD)
    same = by_another(api, node, "first")
    assert api.claimed(same, queue) == []
    api.value("confirm_node", node=node.node_id)
    assert api.claimed(same, queue) == [lease]


def test_attesting_again_confirms_that_domain(api: Api) -> None:
    node = trusted(api)
    api.rows("attest_node", node=node.node_id, domain="b")
    by_another(api, node)
    api.rows("attest_node", node=node.node_id, domain="b")
    suspended = {a["domain"]: a["suspended_at"] for a in api.used(node)["attestations"]}
    assert suspended["b"] is None
    assert suspended["acme.prod"] is not None
    assert api.value("confirm_node", node=node.node_id) == 1


def test_not_if_another_instance_came_since(api: Api, logins: Logins) -> None:
    """Between the operator's look and word; and who confirms is noted."""
    node = trusted(api)
    by_another(api, node)
    by_another(api, node, "third")
    refusal = api.refused("QHN03", "confirm_node", node=node.node_id, instance_id="second")
    assert refusal.detail["instance_id"] == "third"
    assert api.used(node)["instance_id"] == "third"
    login, operator = logins.api(OPERATOR)
    assert operator.value("confirm_node", node=node.node_id) == 1
    assert attested(api, node)["attested_by"] == login


def test_unknown_nodes(api: Api) -> None:
    """And one without attestations, of which nothing is told."""
    gone = api.node()
    by_another(api, gone)
    assert "node_trust_suspended" not in codes_of(api, gone)
    api.rows("deregister_node", node=gone.node_id)
    for node in (NOBODY, gone.node_id):
        api.refused("QHN01", "confirm_node", node=node)
    api.refused("QHN01", "hand_over_node", node=NOBODY, login=api.one("select session_user::text"))
