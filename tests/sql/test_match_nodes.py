"""match_nodes: who could run it now, how well, and why not; the codes are stable."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from hwqueue.testing import Clock
from tests.calls import TASK, Row
from tests.sql.api import Api, Node, token

NODE = str(uuid4())
GPU = {"resource_id": str(uuid4()), "model": "T4"}
SPEC: Row = {
    "labels": {"zone": "a", "n": 3},
    "rack": 1,
    "capacity": {"cpu_milli": 1000, "license": 1},
    "gpus": [GPU],
}


def judged(api: Api, node: Node, placement: Any, **options: Any) -> Row:
    """The row of one node."""
    rows = api.rows("match_nodes", placement=placement, options=options)
    [row] = [row for row in rows if row["node_id"] == node.node_id]
    return row


def label(key: str, op: str, *values: Any) -> Row:
    """A label expression."""
    return {"label": key, "op": op} | ({"values": list(values)} if values else {})


@pytest.mark.parametrize(
    ("code", "expr"),
    [
        ("label_missing", label("gone", "exists")),
        ("label_missing", label("gone", "in", 1)),
        ("label_missing", {"tags": {"gone": {"deep": 1}}}),
        ("label_mismatch", label("zone", "in", "b")),
        ("label_mismatch", label("zone", "not_in", "a")),
        ("label_mismatch", label("zone", "does_not_exist")),
        ("label_mismatch", label("n", "gt", 3)),
        ("label_mismatch", {"label": "n", "op": "in", "other_label": "zone"}),
        ("label_mismatch", {"tags": {"zone": {"deep": 1}}}),
        ("required_affinity_unsatisfiable", {"node": NODE}),
        ("required_affinity_unsatisfiable", {"rack": [2, 3]}),
        ("required_affinity_unsatisfiable", {"resource": NODE}),
        ("required_affinity_unsatisfiable", {"any": [[{"rack": 2}], [label("n", "lt", 1)]]}),
        ("anti_affinity_conflict", {"rack": 1, "away": True}),
        ("anti_affinity_conflict", {"resource": GPU["resource_id"], "away": True}),
    ],
)
@pytest.mark.thorough
def test_reasons_of_what_a_node_is(api: Api, code: str, expr: Row) -> None:
    """Permanent, with the predicate that failed and a message; a claim agrees."""
    queue, node = api.queue(), api.node(**SPEC)
    row = judged(api, node, {"require": [expr]})
    assert not row["eligible"]
    [reason] = row["reasons"]
    assert (reason["code"], reason["permanent"]) == (code, True)
    assert reason["predicate"].keys() >= expr.keys() - {"away"}
    assert reason["message"]
    api.spawn(queue, placement={"require": [expr]})
    assert api.claim(node, queue) == []


def test_away_from_the_node_itself(api: Api) -> None:
    node = api.node()
    expr = {"node": str(node.node_id), "away": True}
    [reason] = judged(api, node, {"require": [expr]})["reasons"]
    assert reason["code"] == "anti_affinity_conflict"


def test_every_reason_is_told(api: Api) -> None:
    node = api.node(**SPEC)
    api.rows("cordon_node", node=node.node_id)
    placement = {
        "require": [label("zone", "in", "b"), {"rack": 2}],
        "resources": {"cpu_milli": 2000},
    }
    reasons = judged(api, node, placement)["reasons"]
    assert sorted(reason["code"] for reason in reasons) == [
        "insufficient_capacity",
        "label_mismatch",
        "node_draining",
        "required_affinity_unsatisfiable",
    ]


@pytest.mark.parametrize(
    ("needs", "word"),
    [
        ({"cpu_milli": 1001}, "cpu_milli"),
        ({"license": 2}, "license"),
        ({"gpu": 2}, "gpu"),
        ({"other": 1}, "other"),
    ],
)
def test_room_that_a_node_never_has(api: Api, needs: Row, word: str) -> None:
    [reason] = judged(api, api.node(**SPEC), {"resources": needs})["reasons"]
    assert (reason["code"], reason["permanent"]) == ("insufficient_capacity", True)
    assert word in reason["message"]


@pytest.mark.parametrize("needs", [{"cpu_milli": 600}, {"license": 1}, {"gpu": 1}, {"gpu_milli": 1}])
def test_room_that_is_taken(api: Api, needs: Row) -> None:
    node = api.node(**SPEC)
    busy = {"cpu_milli": 500, "license": 1, "gpu": 1}
    assert judged(api, node, {"resources": needs})["eligible"]
    api.running(api.queue(), node, placement={"resources": busy})
    [reason] = judged(api, node, {"resources": needs})["reasons"]
    assert (reason["code"], reason["permanent"]) == ("insufficient_capacity", False)


def test_slots(api: Api) -> None:
    node = api.node(slots=1)
    assert judged(api, node, {})["eligible"]
    api.running(api.queue(), node)
    [reason] = judged(api, node, {})["reasons"]
    assert (reason["code"], reason["permanent"]) == ("insufficient_capacity", False)
    assert "slots" in reason["message"]


def test_reasons_that_pass(api: Api, clock: Clock) -> None:
    queue, node = api.queue(), api.node(heartbeat_timeout=45)
    api.rows("pause_queue", queue=queue)
    [reason] = judged(api, node, {}, queue=queue)["reasons"]
    assert (reason["code"], reason["permanent"]) == ("queue_paused", False)
    assert judged(api, node, {})["eligible"]
    api.rows("cordon_node", node=node.node_id)
    [reason] = judged(api, node, {})["reasons"]
    assert (reason["code"], reason["permanent"]) == ("node_draining", False)
    api.rows("uncordon_node", node=node.node_id)
    clock.advance(timedelta(seconds=45))
    [reason] = judged(api, node, {})["reasons"]
    assert (reason["code"], reason["permanent"]) == ("node_not_live", False)


@pytest.mark.parametrize("fit", [0, 2])
def test_the_score_is_that_of_the_claim(api: Api, fit: int) -> None:
    """Affinity is (30 - 10) / (30 + 10 + 60) of 100; fit comes on top."""
    queue = api.queue(tuning={"weight_affinity": 3, "weight_fit": fit})
    node = api.node(**SPEC)
    placement = {
        "prefer": [
            {"weight": 30, "when": label("zone", "in", "a")},
            {"weight": -10, "when": label("n", "gt", 1)},
            {"weight": 60, "when": {"rack": 9}},
        ],
        "resources": {"gpu_milli": 400, "cpu_milli": 100},
    }
    api.spawn(queue, placement=placement)
    [first] = api.claim(node, queue)  # with that its reach is known
    api.rows("release_lease", **token(first))
    row = judged(api, node, placement, queue=queue, task=TASK)
    assert row["reasons"] == []
    [claim] = api.claim(node, queue)
    assert claim["score"] == pytest.approx(row["score"])
    assert claim["score"] > 60 if fit else claim["score"] == 60


def test_the_best_come_first(api: Api) -> None:
    key = f"best-{uuid4().hex}"
    nodes = [api.node(labels={key: value}) for value in (1, 2, 3)]
    placement = {
        "require": [label(key, "in", 1, 2)],
        "prefer": [{"weight": 50, "when": label(key, "in", 2)}],
    }
    rows = api.rows("match_nodes", placement=placement)
    assert [row["node_id"] for row in rows[:2]] == [nodes[1].node_id, nodes[0].node_id]
    assert [row["eligible"] for row in rows[:3]] == [True, True, False]
    assert (rows[0]["score"], rows[1]["score"]) == (1000, 0)
    assert rows[0]["node_name"] == nodes[1].name


def test_it_is_a_dry_run(api: Api) -> None:
    before = api.contents()
    api.rows("match_nodes", placement={"require": [label("new", "in", "class")]}, options={})
    assert api.contents() == before


@pytest.mark.parametrize(
    ("code", "field", "arguments"),
    [
        ("QHC03", "placement", {"placement": []}),
        ("QHC03", "placement.require[0].op", {"placement": {"require": [label("a", "is", 1)]}}),
        ("QHA01", "options", {"placement": {}, "options": []}),
        ("QHA01", "options.priority", {"placement": {}, "options": {"priority": 1}}),
        ("QHA01", "options.labels.a", {"placement": {}, "options": {"labels": {"a": 1}}}),
        ("QHA01", "options.tenant", {"placement": {}, "options": {"tenant": 1}}),
        ("QHA01", "options.task", {"placement": {}, "options": {"task": 1}}),
        ("QHA01", "options.service_id", {"placement": {}, "options": {"service_id": "x"}}),
        ("QHA01", "options.queue", {"placement": {}, "options": {"queue": 7}}),
        ("QHQ01", None, {"placement": {}, "options": {"queue": "nowhere"}}),
    ],
)
@pytest.mark.thorough
def test_bad_arguments(api: Api, code: str, field: str | None, arguments: Row) -> None:
    assert api.refused(code, "match_nodes", **arguments).field == field
