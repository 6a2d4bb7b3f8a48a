"""match_nodes: who could run it now, how well, and why not; the codes are stable."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from hwqueue.testing import Clock
from tests.calls import TASK, Row
from tests.sql.api import Api, Node

NODE = str(uuid4())
GPU = {"resource_id": str(uuid4()), "model": "T4"}
SPEC: Row = {
    "labels": {"zone": "a", "n": 3},
    "rack": 1,
    "capacity": {"cpu_milli": 1000, "license": 1},
    "gpus": [GPU],
}


def judged(api: Api, node: Node, placement: Any, **options: Any) -> Row:
    rows = api.rows("match_nodes", placement=placement, options=options)
    [row] = [row for row in rows if row["node_id"] == node.node_id]
    return row


def label(key: str, op: str, *values: Any) -> Row:
    return {"label": key, "op": op} | ({"values": list(values)} if values else {})


REASONS: dict[str, list[Row]] = {
    "label_missing": [label("gone", "exists"), label("gone", "in", 1), {"tags": {"gone": {"deep": 1}}}],
    "label_mismatch": [
        label("zone", "in", "b"),
        label("zone", "not_in", "a"),
        label("zone", "does_not_exist"),
        label("n", "gt", 3),
        {"label": "n", "op": "in", "other_label": "zone"},
        {"tags": {"zone": {"deep": 1}}},
    ],
    "required_affinity_unsatisfiable": [
        *({"node": NODE}, {"rack": [2, 3]}, {"resource": NODE}),
        {"any": [[{"rack": 2}], [label("n", "lt", 1)]]},
    ],
    "anti_affinity_conflict": [{"rack": 1, "away": True}, {"resource": GPU["resource_id"], "away": True}],
}


@pytest.mark.parametrize("code", REASONS)
@pytest.mark.thorough
def test_reasons_of_what_a_node_is(api: Api, code: str) -> None:
    """Permanent, with the predicate that failed and a message; a claim agrees."""
    queue, node = api.queue(), api.node(**SPEC)
    for expr in REASONS[code]:
        row = judged(api, node, {"require": [expr]})
        assert not row["eligible"]
        [reason] = row["reasons"]
        assert (reason["code"], reason["permanent"]) == (code, True)
        assert reason["predicate"].keys() >= expr.keys() - {"away"}
        assert reason["message"]
        api.spawn(queue, placement={"require": [expr]})
        assert api.claim(node, queue) == []


def test_every_reason_is_told(api: Api) -> None:
    node = api.node(**SPEC)
    api.rows("cordon_node", node=node.node_id)
    itself = {"node": str(node.node_id), "away": True}
    placement = {"require": [label("zone", "in", "b"), {"rack": 2}, itself], "resources": {"cpu_milli": 2000}}
    reasons = judged(api, node, placement)["reasons"]
    assert sorted(reason["code"] for reason in reasons) == [
        "anti_affinity_conflict",
        "insufficient_capacity",
        "label_mismatch",
        "node_draining",
        "required_affinity_unsatisfiable",
    ]


@pytest.mark.parametrize("word", ["cpu_milli", "license", "gpu", "other"])
def test_room_that_a_node_never_has(api: Api, word: str) -> None:
    needs = {"cpu_milli": 1001, "license": 2, "gpu": 2, "other": 1}
    [reason] = judged(api, api.node(**SPEC), {"resources": {word: needs[word]}})["reasons"]
    assert (reason["code"], reason["permanent"]) == ("insufficient_capacity", True)
    assert word in reason["message"]


@pytest.mark.parametrize(
    "needs", [{"cpu_milli": 600}, {"license": 1}, {"gpu": 1}, {"gpu_milli": 1}, {}], ids=str
)
def test_room_that_is_taken(api: Api, needs: Row) -> None:
    """Of what it counts, or of its slots."""
    node = api.node(**SPEC if needs else {"slots": 1})
    busy = {"cpu_milli": 500, "license": 1, "gpu": 1} if needs else {}
    assert judged(api, node, {"resources": needs})["eligible"]
    api.running(api.queue(), node, placement={"resources": busy})
    [reason] = judged(api, node, {"resources": needs})["reasons"]
    assert (reason["code"], reason["permanent"]) == ("insufficient_capacity", False)
    assert needs or "slots" in reason["message"]


def test_reasons_that_pass(api: Api, clock: Clock) -> None:
    queue, node = api.queue(), api.node(heartbeat_timeout=45)

    def reasons(**options: Any) -> list[tuple[str, bool]]:
        found = judged(api, node, {}, **options)["reasons"]
        return [(reason["code"], reason["permanent"]) for reason in found]

    api.rows("pause_queue", queue=queue)
    assert (reasons(queue=queue), reasons()) == ([("queue_paused", False)], [])
    api.rows("cordon_node", node=node.node_id)
    assert reasons() == [("node_draining", False)]
    api.rows("uncordon_node", node=node.node_id)
    clock.advance(timedelta(seconds=45))
    assert reasons() == [("node_not_live", False)]


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
    api.rows("reap")  # with that its reach is known
    row = judged(api, node, placement, queue=queue, task=TASK)
    assert row["reasons"] == []
    [claim] = api.claim(node, queue)
    assert claim["score"] == pytest.approx(row["score"])
    assert claim["score"] > 60 if fit else claim["score"] == 60


def test_the_best_come_first(api: Api) -> None:
    """It is a dry run."""
    key = f"best-{uuid4().hex}"
    nodes = [api.node(labels={key: value}) for value in (1, 2, 3)]
    placement = {"require": [label(key, "in", 1, 2)], "prefer": [{"weight": 50, "when": label(key, "in", 2)}]}
    before = api.contents()
    rows = api.rows("match_nodes", placement=placement, options={})
    assert api.contents() == before
    assert [row["node_id"] for row in rows[:2]] == [nodes[1].node_id, nodes[0].node_id]
    assert [row["eligible"] for row in rows[:3]] == [True, True, False]
    assert (rows[0]["score"], rows[1]["score"]) == (1000, 0)
    assert rows[0]["node_name"] == nodes[1].name


@pytest.mark.thorough
def test_bad_arguments(api: Api) -> None:
    bad: list[tuple[str, str | None, Row]] = [
        ("QHC03", "placement", {"placement": []}),
        ("QHC03", "placement.require[0].op", {"placement": {"require": [label("a", "is", 1)]}}),
        ("QHA01", "options", {"options": []}),
        ("QHA01", "options.priority", {"options": {"priority": 1}}),
        ("QHA01", "options.labels.a", {"options": {"labels": {"a": 1}}}),
        ("QHA01", "options.tenant", {"options": {"tenant": 1}}),
        ("QHA01", "options.task", {"options": {"task": 1}}),
        ("QHA01", "options.service_id", {"options": {"service_id": "x"}}),
        ("QHA01", "options.queue", {"options": {"queue": 7}}),
        ("QHQ01", None, {"options": {"queue": "nowhere"}}),
    ]
    for code, field, arguments in bad:
        assert api.refused(code, "match_nodes", **{"placement": {}} | arguments).field == field
