"""Steps near other steps: where they may run once those have run."""

from datetime import timedelta
from typing import Any

import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.flows import each, step
from tests.sql.api import Api
from tests.sql.near import Fleet, near

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("sound")]


@pytest.mark.parametrize(
    ("what", "away", "expected"),
    [
        ("node", False, {0}),
        ("node", True, {1, 2, 3}),
        ("rack", False, {0, 1}),
        ("rack", True, {2, 3}),
        ("label:half", False, {0, 2}),
        ("label:half", True, {1, 3}),
    ],
)
def test_a_step_runs_where_another_one_ran(api: Api, what: str, away: bool, expected: set[int]) -> None:
    asked = near(what=what, away=away)
    fleet = Fleet(api, [7, 7, 8, None], step("a"), step("b", "a", near=asked))
    assert fleet.takers("b") == {0, 1, 2, 3}
    assert fleet.take(0) == ["a"]
    assert fleet.takers("b") == expected
    for other in {0, 1, 2, 3} - expected:
        assert api.claim(fleet.nodes[other], fleet.queue) == []
    assert fleet.take(min(expected)) == ["b"]


def test_the_items_of_a_map_run_where_a_step_ran(api: Api) -> None:
    asked = near(what="rack")
    fleet = Fleet(api, [7, 7, 8], step("a"), each("m", [1, 2, 3], near=asked, max_parallel=2, after=["a"]))
    fleet.take(0)
    assert fleet.takers("m") == {0, 1}
    assert fleet.steps()["m"]["came_from"]["require"] == [["workflow"], ["near a -> rack 7"]]
    for item, node in enumerate((0, 1, 0)):
        assert api.claim(fleet.nodes[2], fleet.queue) == []
        assert fleet.take(node) == [item]
    assert fleet.steps()["m"]["state"] == "completed"
    api.rows("retry_workflow_run", run=fleet.run, options={"mode": "all"})
    fleet.take(2)
    assert fleet.takers("m") == {2}
    assert fleet.take(2) == [0]


def test_a_map_whose_place_is_gone_fails(api: Api) -> None:
    asked = near(what="rack", gone="fail")
    fleet = Fleet(api, [None], step("a"), each("m", [1], near=asked, after=["a"]))
    fleet.take(0)
    assert fleet.steps()["m"]["reason"] == "near_gone"


@pytest.mark.parametrize("away", [False, True])
def test_a_preference_keeps_nobody_out(api: Api, away: bool) -> None:
    asked = near(mode="prefer", what="rack", weight=50, away=away)
    fleet = Fleet(api, [7, 7, 8], step("a"), step("b", "a", near=asked))
    fleet.take(0)
    assert fleet.takers("b") == {0, 1, 2}
    scores = fleet.scores(fleet.steps()["b"]["placement"])
    best = {node for node, score in scores.items() if score == max(scores.values())}
    assert best == ({2} if away else {0, 1})
    [preference] = fleet.steps()["b"]["placement"]["prefer"]
    assert preference["weight"] == 50
    told = "away from a" if away else "near a"
    assert fleet.steps()["b"]["came_from"]["prefer"] == [[f"{told} -> rack 7"]]


def test_a_step_says_which_steps_it_is_near_and_where_those_ran(api: Api) -> None:
    label = "label:half"
    beside: dict[str, Row] = {
        "b": near(),
        "c": near(["a", "z"], what="rack"),
        "d": near(what=label, away=True),
        "e": near("z"),
    }
    others = [step(name, "a", "z", near=asked) for name, asked in beside.items()]
    fleet = Fleet(api, [7, 8], step("a"), step("z", "a"), *others)
    assert [row["came_from"]["require"] for row in fleet.steps().values()] == [[["workflow"]]] * 6
    fleet.take(0)
    fleet.take(1)
    api.rows("advance_workflows")
    told = {
        name: [level for [level] in row["came_from"]["require"] if level != "workflow"]
        for name, row in fleet.steps().items()
    }
    first, second = (node.name for node in fleet.nodes)
    assert told == {
        "a": [],
        "z": [],
        "b": [f"near a -> node {first}"],
        "c": ["near a and z -> rack 7 or rack 8"],
        "d": ["away from a -> half 0"],
        "e": [f"near z -> node {second}"],
    }


def test_steps_of_one_class_say_each_which_step_they_are_near(api: Api) -> None:
    beside = [
        step(f"near-{n}", "a", "z", task="t", near=near(n, mode="prefer", what="rack")) for n in ("a", "z")
    ]
    fleet = Fleet(api, [7], step("a"), step("z", "a"), *beside)
    fleet.take(0)
    fleet.take(0)
    api.rows("advance_workflows")
    told = {name: row["came_from"].get("prefer") for name, row in fleet.steps().items()}
    assert (told["near-a"], told["near-z"]) == ([["near a -> rack 7"]], [["near z -> rack 7"]])


def test_runs_share_the_class_of_a_task_and_a_place(api: Api) -> None:
    fleet = Fleet(api, [None], step("a"), step("b", "a", near=near()))
    fleet.take(0)
    before = api.contents()["placement_class"]
    other = api.row("submit_spec", spec=fleet.spec)["run_id"]
    assert {*fleet.take(0), *fleet.take(0)} == {"a", "b"}
    assert fleet.take(0) == ["b"]
    assert api.contents()["placement_class"] == before
    assert api.row("get_workflow_run", run=other)["state"] == "completed"


def test_several_steps_mean_any_of_their_places(api: Api) -> None:
    """A step that ran before the parents is a place, too."""
    steps = [step("a"), step("b"), step("c", "a", "b", near=near(["a", "b"]))]
    fleet = Fleet(api, [1, 2, 3], *steps, step("d", "c", near=near()))
    fleet.take(0)
    fleet.take(2)
    assert fleet.takers("c") == {0, 2}
    fleet.take(2)
    assert fleet.takers("d") == {0}


def test_a_finally_step_is_near_a_step_that_failed(api: Api) -> None:
    last = step("last", near=near()) | {"finally": "failed"}
    fleet = Fleet(api, [1, 2], step("a"), last)
    fleet.take(1, fails=True)
    assert fleet.takers("last") == {1}


def test_the_node_of_the_last_attempt_counts_after_a_retry(api: Api) -> None:
    steps = [step("a"), step("b", "a", near=near())]
    fleet = Fleet(api, [1, 2], *steps)
    fleet.take(0)
    fleet.take(0, fails=True)
    api.rows("retry_workflow_run", run=fleet.run, options={"mode": "all"})
    fleet.take(1)
    assert fleet.takers("b") == {1}
    assert api.claim(fleet.nodes[0], fleet.queue) == []
    assert fleet.take(1) == ["b"]


def test_a_step_that_was_skipped_has_no_place(api: Api) -> None:
    never = step("never", "a", run_if=[{"input": ["x"], "op": "exists"}])
    after = {"step": "never", "on": "ended"}
    steps = [
        step("a"),
        never,
        step("b", after, near=near("never")),
        step("c", after, near=near("never", gone="fail")),
    ]
    fleet = Fleet(api, [1, 2], *steps)
    fleet.take(0)
    assert fleet.takers("b") == {0, 1}
    failed = fleet.steps()["c"]
    assert (failed["state"], failed["reason"]) == ("failed", "near_gone")
    assert failed["error"] == {"near": "node", "places": []}


@pytest.mark.parametrize("go", ["cordon_node", "deregister_node"])
@pytest.mark.parametrize(("gone", "expected"), [("wait", set()), ("anywhere", {1, 2}), ("fail", None)])
def test_the_node_is_gone_when_the_step_is_released(
    api: Api, go: str, gone: str, expected: set[int] | None
) -> None:
    asked = near(gone=gone)
    steps = [step("a"), step("b", "a"), step("c", "b", near=asked), step("d", "c")]
    fleet = Fleet(api, [1, 2, 3], *steps)
    fleet.take(0)
    api.rows(go, node=fleet.nodes[0].node_id)
    fleet.take(1)
    found = fleet.steps()["c"]
    if expected is None:
        assert (found["state"], found["reason"]) == ("failed", "near_gone")
        assert found["error"]["places"] == [str(fleet.nodes[0].node_id)]
        return
    rows = api.rows("match_nodes", placement=found["placement"])  # without one that has left
    able = {row["node_id"] for row in rows if row["eligible"]}
    assert {n for n, node in enumerate(fleet.nodes) if node.node_id in able} == expected


def test_a_silent_node_is_gone_while_its_rack_is_there(api: Api, clock: Clock) -> None:

    steps = [
        step("a"),
        step("b", "a"),
        step("on", "b", near=near(gone="fail")),
        step("by", "b", near=near(what="rack", gone="fail"), on_failure="continue"),
    ]
    fleet = Fleet(api, [5, 5, 6], *steps)
    fleet.take(0)
    clock.advance(timedelta(hours=1))
    for node in fleet.nodes[1:]:
        api.rows("heartbeat_node", node=node.node_id, epoch=node.epoch, claims=[])
    fleet.take(2)
    assert fleet.steps()["on"]["reason"] == "near_gone"
    assert fleet.steps()["by"]["state"] == "running"


def test_a_place_that_contradicts_the_placement_fails_the_step(api: Api) -> None:
    asked = near(what="rack")
    there = step("b", "a", near=asked, placement={"require": [{"rack": [2]}]})
    fleet = Fleet(api, [1, 2], step("a"), there)
    assert fleet.take(0) == ["a"]
    found = fleet.steps()["b"]
    assert (found["state"], found["reason"]) == ("failed", "near_contradicts")
    assert found["error"]["places"] == [1]
    assert api.row("get_workflow_run", run=fleet.run)["state"] == "failed"


def test_what_requires_its_place_does_not_wait_for_a_better_one(api: Api) -> None:
    steps = [
        step("a"),
        step("b", "a", near=near()),
        step("c", "a", near=near(), options={"patience": 7}),
        step("d", "a", near=near(mode="prefer")),
    ]
    fleet = Fleet(api, [1], *steps)
    fleet.take(0)
    found = api.one(
        "select array_agg(c.patience order by s.step_no) from hwqueue.step s"
        " join hwqueue.placement_class c using (class_id) where s.run_id = %s",
        fleet.run,
    )
    assert found == [None, timedelta(0), timedelta(seconds=7), None]


def test_a_paused_run_finds_the_place_when_it_goes_on(api: Api) -> None:
    fleet = Fleet(api, [1, 2], step("a"), step("b", "a", near=near(gone="fail")))
    [claim] = api.claim(fleet.nodes[0], fleet.queue, qty=1)
    api.rows("pause_workflow_run", run=fleet.run)
    api.complete(claim)
    api.rows("cordon_node", node=fleet.nodes[0].node_id)
    api.rows("resume_workflow_run", run=fleet.run)
    assert fleet.steps()["b"]["reason"] == "near_gone"


@pytest.mark.parametrize(
    ("steps", "field", "said"),
    [
        ([step("a"), step("b", near=near())], "spec.steps[1].near", "add it to after"),
        ([step("a", near=near())], "spec.steps[0].near", "add it to after"),
        ([step("b", near=near("x"))], "spec.steps[0].near", "add it to after"),
        ([step("b", near={})], "spec.steps[0].near.step", "for example"),
        ([step("b", near=near("x", mode="maybe"))], "spec.steps[0].near.mode", "words"),
        ([step("b", near={"step": "x", "gone": "fail"})], "spec.steps[0].near.gone", "mode"),
        ([step("b", near=near("x", weight=3))], "spec.steps[0].near.weight", "mode"),
        ([step("b", near=near("x", with_=1))], "spec.steps[0].near.with_", "step"),
        ([step("a"), step("b", "a", near=near(what="room"))], "spec.steps[1].near.what", ""),
    ],
)
@pytest.mark.every_variant
def test_what_is_refused(api: Api, steps: list[Row], field: str, said: str) -> None:
    spec = {"name": "w", "queue": api.queue(), "steps": steps}
    code = "QHC03" if field.endswith("what") else "QHF02"
    refusal = api.refused(code, "submit_spec", spec=spec)
    assert refusal.field == field
    assert said in refusal.hint


def test_equal_meanings_are_one_definition(api: Api) -> None:
    def spec(**asked: Any) -> Row:
        return {"name": "same", "steps": [step("a"), step("b", "a", near={"step": "a"} | asked)]}

    assert api.row("define_workflow", spec=spec())["created"]
    for same in ({"mode": "prefer"}, {"away": False}, {"weight": 100}):
        assert not api.row("define_workflow", spec=spec(**same))["created"]
    assert api.row("define_workflow", spec=spec(away=True))["created"]
