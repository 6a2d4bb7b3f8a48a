"""explain_lease and explain_class: every state, and what keeps pending leases from each node."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.flows import Flow, each, step
from tests.nests import nested
from tests.sql.api import NOBODY, Api, Node, token
from tests.sql.explained import actions, codes, explain, explain_class, funnel, label, near

GPUS = [{"resource_id": str(uuid4()), "model": "A100"} for _ in range(2)]


pytestmark = pytest.mark.usefixtures("lone")


def test_nodes_that_could_take_it_now(api: Api, queue: str, node: Node) -> None:
    first, lease = api.spawn(queue), api.spawn(queue)
    found = explain(api, lease)
    assert (found["state"], found["code"], found["permanent"]) == ("pending", "ready", False)
    assert found["headline"] == "1 node could take it now; 1 lease of the queue comes before it"
    assert (found["position"], found["pending"]) == (1, 2)
    assert explain(api, first)["headline"] == "1 node could take it now; it is the first in line"
    assert near(found, node)["reasons"] == []
    assert set(funnel(found).values()) == {1}
    assert (found["sole_blockers"], found["help"], found["waits_until"]) == ([], [], None)
    assert found["words"] == "any node"
    queue = api.queue()  # the place in line goes by priority
    leases = [api.spawn(queue, priority=priority) for priority in (1, 5, 5, 3)]
    api.spawn(api.queue())
    assert [explain(api, lease)["position"] for lease in leases] == [3, 0, 1, 2]


def test_scheduled(api: Api, clock: Clock) -> None:
    lease = api.spawn(api.queue(), delay=90)
    found = explain(api, lease)
    assert (found["state"], found["code"]) == ("scheduled", "scheduled")
    assert found["headline"] == "scheduled: claimable in 1 min"
    assert found["waits_until"] - found["as_of"] == timedelta(seconds=90)
    assert found["funnel"] is found["nearest"] is found["position"] is None
    clock.advance(timedelta(seconds=90))
    assert "due" in explain(api, lease)["headline"]
    queue = api.queue(retry={"kind": "fixed", "base": 30, "jitter": 0})
    claim = api.running(queue)
    api.rows("fail_lease", **token(claim), error={"type": "Boom", "message": "it\nbroke"})
    again = "claimable in 30 s, for attempt 2; the one before ended with Boom: it broke"
    assert explain(api, claim["lease_id"])["headline"] == f"scheduled: {again}"


def test_claimed(api: Api, clock: Clock) -> None:
    node, queue = api.node(), api.queue(claim_timeout=60, max_attempts=3)
    claim = api.running(queue, node)
    clock.advance(timedelta(seconds=5))
    found = explain(api, claim["lease_id"])
    assert (found["state"], found["code"]) == ("claimed", "claimed")
    assert found["headline"] == (
        f"runs on {node.name} for 5 s, attempt 1 of 3; its claim ends in 55 s unless its worker goes on"
    )
    assert found["waits_until"] == claim["expires_at"]
    api.rows("cancel_lease", lease=claim["lease_id"], reason="not needed")
    clock.advance(timedelta(seconds=1))
    found = explain(api, claim["lease_id"])
    assert found["code"] == "cancelled"
    assert found["headline"].endswith("it was asked to stop 1 s ago (cancelled: not needed)")
    clock.advance(timedelta(seconds=60))
    found = explain(api, claim["lease_id"])
    assert found["code"] == "expired"
    assert "its claim expired 6 s ago" in found["headline"]


def test_what_has_ended(api: Api, clock: Clock) -> None:
    node, queue = api.node(), api.queue(max_attempts=1)
    completed, failed = (api.running(queue, node) for _ in range(2))
    api.complete(completed)
    api.rows("fail_lease", **token(failed), error={"message": "no such file"})
    cancelled = api.spawn(queue)
    api.rows("cancel_lease", lease=cancelled, reason="why not")
    clock.advance(timedelta(seconds=2))
    found = explain(api, completed["lease_id"])
    assert (found["code"], found["permanent"]) == ("completed", True)
    assert found["headline"] == f"completed 2 s ago on {node.name}, attempt 1"
    found = explain(api, failed["lease_id"])
    assert found["headline"] == f"failed 2 s ago on {node.name}, attempt 1: no such file"
    assert explain(api, cancelled)["headline"] == "cancelled 2 s ago: why not"


def test_a_deadline_and_a_pause(api: Api, clock: Clock) -> None:
    api.node()
    lease = api.spawn(api.queue(), deadline=(clock.now() + timedelta(seconds=20)).isoformat())
    assert explain(api, lease)["headline"].endswith("unless it is claimed in 20 s, it fails")
    clock.advance(timedelta(seconds=21))
    found = explain(api, lease)
    assert (found["code"], found["permanent"]) == ("deadline_exceeded", True)
    queue, node = api.queue(), api.node()  # of a queue that is paused
    lease = api.spawn(queue)
    api.rows("pause_queue", queue=queue)
    found = explain(api, lease)
    assert (found["code"], found["permanent"]) == ("queue_paused", False)
    assert found["headline"].startswith(f"queue {queue} is paused since")
    assert actions(found) == ["resume"]
    assert queue in found["help"][0]["words"]
    assert near(found, node)["reasons"] == []


def test_no_node_is_there_or_live(api: Api, clock: Clock) -> None:
    """If silent nodes could not run it either, that is said."""
    lease = api.spawn(api.queue())
    found = explain(api, lease)
    assert (found["code"], found["headline"]) == ("no_nodes", "no node is registered")
    assert found["nearest"] == []
    assert actions(found) == ["register", "add_node"]
    assert set(funnel(found).values()) == {0}
    node = api.node(labels={"a": 1}, heartbeat_timeout=45)
    clock.advance(timedelta(minutes=3))
    found = explain(api, lease)
    assert (found["code"], found["permanent"]) == ("node_not_live", False)
    assert found["headline"] == "the only node is silent: the last sign of life came 3 min ago"
    assert near(found, node)["state"] == "silent"
    assert codes(found, node) == ["node_not_live"]
    assert actions(found)[0] == "revive"
    lease = api.spawn(api.queue(), placement={"resources": {"gpu": 1}})
    found = explain(api, lease)
    assert (found["code"], found["permanent"]) == ("node_not_live", True)
    assert found["headline"].endswith("3 min ago; back again, none of them could run it either")
    assert codes(found, node) == ["insufficient_capacity", "node_not_live"]
    api.node(heartbeat_timeout=45, gpus=[{"resource_id": str(uuid4())}])
    clock.advance(timedelta(minutes=3))
    found = explain(api, lease)
    assert (found["code"], found["permanent"]) == ("node_not_live", False)
    assert found["headline"] == "all 2 nodes are silent: the last sign of life came 3 min ago"
    api.node()
    found = explain(api, api.spawn(api.queue(), placement={"require": [label("a", 1)]}))
    assert (found["code"], found["permanent"]) == ("node_not_live", False)
    assert found["headline"] == "1 node matches, but it is silent"
    assert actions(found) == ["revive", "relax", "add_node"]


UNSATISFIABLE = "required_affinity_unsatisfiable"
# what a lease asks: code, stage, action, what is said of it, what the node has
LABELS = ("labels", "relax")
ALONE: dict[str, tuple[Row, str, tuple[str, str], str | None, str | None]] = {
    "label": ({"require": [label("model", "A100")]}, "label_mismatch", LABELS, "model in A100", '"T4"'),
    "no label": ({"require": [label("gone", 1)]}, "label_missing", LABELS, "gone in 1", None),
    "rack": ({"require": [{"rack": 3}]}, UNSATISFIABLE, LABELS, "in rack 3", "rack 1"),
    "node": ({"require": [{"node": str(NOBODY)}]}, UNSATISFIABLE, LABELS, f"on node {NOBODY}", None),
    "away": (
        {"require": [{"rack": 1, "away": True}]},
        "anti_affinity_conflict",
        LABELS,
        "not in rack 1",
        "rack 1",
    ),
    "trust": (
        {"require": [{"trust": "acme"}]},
        "trust_not_attested",
        ("trust", "attest"),
        "trusted for acme",
        "trusted for nothing",
    ),
    "isolation": (
        {"isolation": {"cpu": "whole_core"}},
        "no_node_supports_class",
        ("isolation", "isolate"),
        "CPU isolation whole_core",
        "best_effort",
    ),
    "gpus": ({"resources": {"gpu": 3}}, "insufficient_capacity", ("capacity", "resize"), "3 GPU", "2 GPU"),
    "amounts": (
        {"resources": {"cpu_milli": 9000, "license": 2}},
        "insufficient_capacity",
        ("capacity", "resize"),
        "9 CPU, 2 license",
        "4 CPU, 1 license",
    ),
    "any": (
        {"require": [{"any": [[label("model", "A100")], [{"rack": 4}]]}]},
        UNSATISFIABLE,
        LABELS,
        None,
        None,
    ),
}


@pytest.mark.parametrize("case", ALONE)
def test_one_thing_keeps_the_node_out(api: Api, case: str) -> None:
    placement, code, (stage, action), said, has = ALONE[case]
    node = api.node(labels={"model": "T4"}, rack=1, gpus=GPUS, capacity={"cpu_milli": 4000, "license": 1})
    lease = api.spawn(api.queue(), placement=placement)
    with api.unchanged():
        found, of_class = explain(api, lease), explain_class(api, lease)
    assert (found["code"], found["permanent"]) == (code, True)
    assert found["headline"].startswith("no live node can run it: 1 node would match but for ")
    assert (found["nodes_live"], found["nodes_matching"], found["nodes_free"]) == (1, 0, 0)
    [blocker] = found["sole_blockers"]
    assert (blocker["code"], blocker["stage"], blocker["nodes"]) == (code, stage, 1)
    assert blocker["samples"] == [node.name]
    [reason] = near(found, node)["reasons"]
    assert (reason["code"], reason["stage"], reason["permanent"]) == (code, stage, True)
    assert reason["message"]
    if said is not None:
        assert blocker["words"] == reason["wanted"] == said
    if has is not None:
        assert reason["has"] == has
    left = list(funnel(found).items())
    lost = [name for name, _ in left].index(stage)
    assert [nodes for _, nodes in left] == [1] * lost + [0] * (len(left) - lost)
    assert actions(found)[:2] == [action, "add_node"]
    assert found["help"][0]["leases"] == 1
    for column in ("code", "permanent", "headline", "funnel", "sole_blockers", "nearest", "help"):
        assert of_class[column] == found[column], column
    assert [row["lease_id"] for row in of_class["leases"]] == [str(lease)]


def test_tainted_and_cordoned_nodes(api: Api, queue: str, node: Node) -> None:
    api.rows("taint_node", node=node.node_id, taint={"key": "film", "effect": "no_schedule"})
    found = explain(api, api.spawn(queue))
    assert (found["code"], found["permanent"]) == ("untolerated_taint", True)
    [reason] = near(found, node)["reasons"]
    assert reason["has"] == "film:no_schedule"
    assert actions(found)[0] == "tolerate"
    api.rows("untaint_node", node=node.node_id, key="film")
    api.rows("cordon_node", node=node.node_id)
    found = explain(api, api.spawn(queue))
    assert (found["code"], found["permanent"]) == ("node_draining", False)
    assert found["headline"] == "1 node matches, but it is cordoned"
    assert actions(found)[0] == "uncordon"
    assert node.name in found["help"][0]["words"]
    assert near(found, node)["state"] == "cordoned"


def test_the_closest_lack_something(api: Api) -> None:
    """No single thing keeps any node out: the funnel says how far they came."""
    nodes = [api.node(labels={"a": n}) for n in range(3)]
    placement = {"require": [label("a", 1, 2), label("b", 1)], "resources": {"gpu": 1}}
    found = explain(api, api.spawn(api.queue(), placement=placement))
    assert found["sole_blockers"] == []
    assert found["code"] in ("label_missing", "insufficient_capacity")
    assert found["headline"].startswith("no live node can run it: most lack ")
    assert (funnel(found)["live"], funnel(found)["labels"]) == (3, 0)
    assert [row["node"] for row in found["nearest"]] == [n.name for n in (nodes[1], nodes[2], nodes[0])]


def test_what_would_match_counts_whether_free_or_not(api: Api, queue: str) -> None:
    """One label away, wrong or missing; a full node counts, one that lacks two things does not."""
    full = api.node(labels={"a": 1}, slots=1)
    claim = api.running(queue, full)
    found = explain(api, api.spawn(queue))
    [reason] = near(found, full)["reasons"]
    assert (reason["wanted"], reason["has"]) == ("1 slots free", "0 slots free")
    assert found["help"][0]["lease_id"] == str(claim["lease_id"])
    api.node(labels={"a": 1})
    api.node()
    placement = {"require": [label("a", 2), label("b", 1)]}
    assert explain(api, api.spawn(queue, placement=placement))["sole_blockers"] == []
    found = explain(api, api.spawn(queue, placement={"require": [label("a", 2)]}))
    [blocker] = found["sole_blockers"]
    assert (blocker["words"], blocker["nodes"]) == ("a in 2", 3)
    assert (blocker["code"], blocker["permanent"]) == ("label_mismatch", True)
    assert found["headline"] == "no live node can run it: 3 nodes would match but for a in 2"


@pytest.mark.parametrize(
    ("busy", "wanted", "has"),
    [
        ({"gpu": 1}, {"gpu": 2}, "1 GPU free"),
        ({"gpu_milli": 300}, {"gpu": 2}, "1 GPU free"),
        ({"cpu_milli": 3000}, {"cpu_milli": 2000}, "1 CPU free"),
        ({"memory_mib": 3000}, {"memory_mib": 2000}, "1 GiB free"),
        ({"license": 1}, {"license": 1}, "0 license free"),
    ],
)
def test_all_that_match_are_full(api: Api, queue: str, busy: Row, wanted: Row, has: str) -> None:
    node = api.node(gpus=GPUS, capacity={"cpu_milli": 4000, "memory_mib": 4024, "license": 1})
    claim = api.running(queue, node, placement={"resources": busy})
    found = explain(api, api.spawn(queue, placement={"resources": wanted}))
    assert (found["code"], found["permanent"]) == ("nodes_support_but_contended", False)
    assert found["headline"].startswith("1 node matches, none is free: 1 lacks")
    assert (found["nodes_matching"], found["nodes_free"]) == (1, 0)
    [reason] = near(found, node)["reasons"]
    assert (reason["code"], reason["stage"]) == ("insufficient_capacity", "free")
    assert reason["has"] == has
    assert [holder["lease_id"] for holder in reason["holders"]] == [str(claim["lease_id"])]
    assert reason["holders"][0]["holds"]
    [wait] = found["help"]
    assert (wait["action"], wait["lease_id"]) == ("wait", str(claim["lease_id"]))


def test_it_waits_for_a_better_node(api: Api, clock: Clock) -> None:
    """Not for one that is free."""
    best, worst = api.node(labels={"zone": "a"}, slots=1), api.node(labels={"zone": "b"})
    queue = api.queue(patience=2)
    placement = {"prefer": [{"weight": 1, "when": label("zone", "a")}]}
    found = explain(api, api.spawn(api.queue(), placement=placement))
    assert (found["code"], found["nodes_free"]) == ("ready", 2)
    api.running(queue, best)
    lease = api.spawn(queue, placement=placement)
    found = explain(api, lease)
    assert (found["code"], found["permanent"]) == ("waiting_for_preferred", False)
    assert found["headline"] == (
        f"waits 2 s more for node {best.name}, which suits it better than the free node {worst.name}"
    )
    assert found["waits_until"] - found["as_of"] == timedelta(seconds=2)
    clock.advance(timedelta(seconds=2))
    assert explain(api, lease)["code"] == "ready"
    assert api.claimed(worst, queue) == [lease]


def test_the_lease_of_a_step_says_what_released_it(api: Api, clock: Clock) -> None:
    pair = ["left", "right"]
    spec = [step("fetch"), *(step(name, "fetch") for name in pair), step("both", *pair)]
    spec += [step("any", *pair, join="any"), each("score", [1, 2], after=pair)]
    flow = Flow(api, [*spec, step("tell", **{"finally": "ended"})])

    def released(claim: Row) -> Any:
        return explain(api, claim["lease_id"])["released"]

    clock.advance(timedelta(seconds=5))
    fetch = flow.claims()["fetch"]
    assert released(fetch) == f"released 5 s ago by the submission of run {flow.run}"
    flow.settle(fetch)
    clock.advance(timedelta(minutes=3))
    claims = flow.claims()
    assert released(claims["left"]) == f"released 3 min ago by step fetch of run {flow.run}"
    flow.settle(claims["right"])
    clock.advance(timedelta(seconds=10))
    flow.settle(claims["left"])
    clock.advance(timedelta(seconds=2))
    steps = flow.items()
    after = f"by step left of run {flow.run}, after step right"
    assert released(steps["both"]) == f"released 2 s ago {after}"
    assert released(steps["any"]) == f"released 12 s ago by step right of run {flow.run}"
    assert released(steps[1]) == f"item 1 of step score, released 2 s ago {after}"
    flow.settle_each(steps.values())
    assert released(fetch) == f"released 3 min ago by the submission of run {flow.run}"
    [tell] = flow.claims().values()
    assert released(tell) == f"released by the end of all other steps of run {flow.run}"
    assert explain(api, api.spawn(api.queue()))["released"] is None


def test_a_nested_lease_names_the_run_that_it_is_a_step_of(api: Api, queue: str) -> None:
    below = f"below-{uuid4().hex[:8]}"
    api.row("define_workflow", spec={"name": below, "queue": queue, "steps": [step("a")]})
    flow = Flow(api, [nested("load", below)])
    api.rows("advance_workflows")
    run = flow.steps()["load"]["nested_run_id"]
    [a] = api.rows("list_workflow_steps", run=run)
    assert explain(api, a["lease_id"])["released"].endswith(
        f"by the submission of run {run}, a step of run {flow.run}"
    )


def test_unknown_leases_and_classes(api: Api) -> None:
    """A class of which nothing is pending is known."""
    for lease in (NOBODY, None):
        api.refused("QHL04", "explain_lease", lease=lease)
    for class_id in (0, -1, None):
        api.refused("QHC01", "explain_class", **{"class": class_id})
    claim = api.running(api.queue())
    found = explain_class(api, claim["lease_id"])
    assert (found["pending"], found["leases"], found["code"]) == (0, [], "ready")
    assert found["headline"].startswith("nothing of it is pending")
