"""Steps near other steps: where they may run once those have run."""

from datetime import timedelta
from typing import Any

import pytest

from hwqueue.testing import Clock
from tests.calls import Row
from tests.flows import each, step
from tests.sql.api import Api, Node

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("sound")]


class Fleet:
    """A queue, nodes that have its label, and a run that is driven on them."""

    def __init__(self, api: Api, racks: list[int | None], *steps: Row, **spec: Any) -> None:
        self.api = api
        self.queue = api.queue(max_attempts=1)
        self.nodes = []
        for n, rack in enumerate(racks):
            more: Row = {} if rack is None else {"rack": rack}
            self.nodes.append(api.node(labels={"lab": self.queue, "half": n % 2}, **more))
        given = {"name": self.queue, "queue": self.queue, "steps": list(steps)} | spec
        given.setdefault("affinity_tags", {"lab": self.queue})
        self.run = api.row("submit_spec", spec=given)["run_id"]

    def steps(self) -> dict[str, Row]:
        return {row["step"]: row for row in self.api.rows("list_workflow_steps", run=self.run)}

    def finish(self, node: Node, *, fails: bool = False) -> str:
        """Let a node run the next step; its name."""
        [claim] = self.api.claim(node, self.queue, qty=1)
        end = {"lease": claim["lease_id"], "token": claim["claim_token"]}
        if fails:
            self.api.rows("fail_lease", **end, error={"message": "no"}, retry=False)
        else:
            self.api.rows("complete_lease", **end)
        return str(claim["headers"]["step"])

    def takers(self, name: str) -> set[int]:
        """The nodes, by number, that may run a step; and in what order they suit it."""
        return {n for n, row in enumerate(self.matches(name)) if row["eligible"]}

    def best(self, name: str) -> set[int]:
        scores = [row["score"] for row in self.matches(name)]
        return {n for n, score in enumerate(scores) if score == max(scores)}

    def matches(self, name: str) -> list[Row]:
        rows = self.api.rows("match_nodes", placement=self.steps()[name]["placement"])
        found = {row["node_id"]: row for row in rows}
        return [found[node.node_id] for node in self.nodes]


def near(name: str | list[str] = "a", what: str = "node", **more: Any) -> Row:
    return {"step": name, "what": what} | more


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
    asked = near(what=what, mode="require", away=away)
    fleet = Fleet(api, [7, 7, 8, None], step("a"), step("b", "a", near=asked))
    assert fleet.takers("b") == {0, 1, 2, 3}
    assert fleet.finish(fleet.nodes[0]) == "a"
    assert fleet.takers("b") == expected
    for other in {0, 1, 2, 3} - expected:
        assert api.claim(fleet.nodes[other], fleet.queue) == []
    assert fleet.finish(fleet.nodes[min(expected)]) == "b"


def test_the_items_of_a_map_run_where_a_step_ran(api: Api) -> None:
    asked = near(what="rack", mode="require")
    fleet = Fleet(api, [7, 7, 8], step("a"), each("m", [1, 2, 3], near=asked, max_parallel=2, after=["a"]))
    fleet.finish(fleet.nodes[0])
    assert fleet.takers("m") == {0, 1}
    assert fleet.steps()["m"]["came_from"]["require"] == [["workflow"], ["near a -> rack 7"]]
    for node in (0, 1, 0):
        assert api.claim(fleet.nodes[2], fleet.queue) == []
        assert fleet.finish(fleet.nodes[node]) == "m"
        api.rows("advance_workflows")
    assert fleet.steps()["m"]["state"] == "completed"
    api.rows("retry_workflow_run", run=fleet.run, options={"mode": "all"})
    fleet.finish(fleet.nodes[2])
    assert fleet.takers("m") == {2}
    assert fleet.finish(fleet.nodes[2]) == "m"


def test_a_map_whose_place_is_gone_fails(api: Api) -> None:
    asked = near(what="rack", mode="require", gone="fail")
    fleet = Fleet(api, [None], step("a"), each("m", [1], near=asked, after=["a"]))
    fleet.finish(fleet.nodes[0])
    assert fleet.steps()["m"]["reason"] == "near_gone"


@pytest.mark.parametrize("away", [False, True])
def test_a_preference_keeps_nobody_out(api: Api, away: bool) -> None:
    asked = near(what="rack", weight=50, away=away)
    fleet = Fleet(api, [7, 7, 8], step("a"), step("b", "a", near=asked))
    fleet.finish(fleet.nodes[0])
    assert fleet.takers("b") == {0, 1, 2}
    assert fleet.best("b") == ({2} if away else {0, 1})
    [preference] = fleet.steps()["b"]["placement"]["prefer"]
    assert preference["weight"] == 50
    told = "away from a" if away else "near a"
    assert fleet.steps()["b"]["came_from"]["prefer"] == [[f"{told} -> rack 7"]]


def test_a_step_says_which_steps_it_is_near_and_where_those_ran(api: Api) -> None:
    label = "label:half"
    beside: dict[str, Row] = {
        "b": near(mode="require"),
        "c": near(["a", "z"], "rack", mode="require"),
        "d": near(what=label, away=True, mode="require"),
        "e": near("z", mode="require"),
    }
    fleet = Fleet(
        api, [7, 8], step("a"), step("z", "a"),
        *(step(name, "a", "z", near=asked) for name, asked in beside.items()),
    )  # fmt: skip
    assert [row["came_from"]["require"] for row in fleet.steps().values()] == [[["workflow"]]] * 6
    fleet.finish(fleet.nodes[0])
    fleet.finish(fleet.nodes[1])
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
    beside = [step(f"near-{n}", "a", "z", task="t", near=near(n, "rack")) for n in ("a", "z")]
    fleet = Fleet(api, [7], step("a"), step("z", "a"), *beside)
    fleet.finish(fleet.nodes[0])
    fleet.finish(fleet.nodes[0])
    api.rows("advance_workflows")
    told = {name: row["came_from"].get("prefer") for name, row in fleet.steps().items()}
    assert told["near-a"] == [["near a -> rack 7"]]
    assert told["near-z"] == [["near z -> rack 7"]]


def test_runs_share_the_class_of_a_task_and_a_place(api: Api) -> None:
    steps = [step("a"), step("b", "a", near=near(mode="require"))]
    fleet = Fleet(api, [None], *steps)
    node = fleet.nodes[0]
    lab = {"lab": fleet.queue}
    spec = {"name": "x", "queue": fleet.queue, "steps": steps, "affinity_tags": lab}
    fleet.finish(node)
    before = classes(api)
    other = api.row("submit_spec", spec=spec)["run_id"]
    assert {fleet.finish(node), fleet.finish(node)} == {"a", "b"}
    assert fleet.finish(node) == "b"
    assert classes(api) == before
    assert api.row("get_workflow_run", run=other)["state"] == "completed"


def classes(api: Api) -> int:
    row = api.conn.execute("select count(*) from hwqueue.placement_class").fetchone()
    assert row is not None
    return int(row[0])


def test_several_steps_mean_any_of_their_places(api: Api) -> None:
    asked = near(["a", "b"], mode="require")
    fleet = Fleet(api, [1, 2, 3], step("a"), step("b"), step("c", "a", "b", near=asked))
    fleet.finish(fleet.nodes[0])
    fleet.finish(fleet.nodes[2])
    assert fleet.takers("c") == {0, 2}


def test_a_step_that_ran_before_the_parents_is_a_place_too(api: Api) -> None:
    steps = [step("a"), step("b", "a"), step("c", "b", near=near(mode="require"))]
    fleet = Fleet(api, [1, 2], *steps)
    fleet.finish(fleet.nodes[0])
    fleet.finish(fleet.nodes[1])
    assert fleet.takers("c") == {0}


def test_a_finally_step_is_near_a_step_that_failed(api: Api) -> None:
    last = step("last", near=near(mode="require")) | {"finally": "failed"}
    fleet = Fleet(api, [1, 2], step("a"), last)
    fleet.finish(fleet.nodes[1], fails=True)
    assert fleet.takers("last") == {1}


def test_the_node_of_the_last_attempt_counts_after_a_retry(api: Api) -> None:
    steps = [step("a"), step("b", "a", near=near(mode="require"))]
    fleet = Fleet(api, [1, 2], *steps)
    fleet.finish(fleet.nodes[0])
    fleet.finish(fleet.nodes[0], fails=True)
    api.rows("retry_workflow_run", run=fleet.run, options={"mode": "all"})
    fleet.finish(fleet.nodes[1])
    assert fleet.takers("b") == {1}
    assert api.claim(fleet.nodes[0], fleet.queue) == []
    assert fleet.finish(fleet.nodes[1]) == "b"


def test_a_step_that_was_skipped_has_no_place(api: Api) -> None:
    never = step("never", "a", run_if=[{"input": ["x"], "op": "exists"}])
    after = {"step": "never", "on": "ended"}
    steps = [
        step("a"),
        never,
        step("b", after, near=near("never", mode="require")),
        step("c", after, near=near("never", mode="require", gone="fail")),
    ]
    fleet = Fleet(api, [1, 2], *steps)
    fleet.finish(fleet.nodes[0])
    assert fleet.takers("b") == {0, 1}
    failed = fleet.steps()["c"]
    assert (failed["state"], failed["reason"]) == ("failed", "near_gone")
    assert failed["error"] == {"near": "node", "places": []}


def leave(api: Api, node: Node) -> None:
    api.rows("deregister_node", node=node.node_id)


def cordon(api: Api, node: Node) -> None:
    api.rows("cordon_node", node=node.node_id)


@pytest.mark.parametrize("go", [cordon, leave])
@pytest.mark.parametrize(("gone", "expected"), [("wait", set()), ("anywhere", {1, 2}), ("fail", None)])
def test_the_node_is_gone_when_the_step_is_released(
    api: Api, go: Any, gone: str, expected: set[int] | None
) -> None:
    asked = near(mode="require", gone=gone)
    steps = [step("a"), step("b", "a"), step("c", "b", near=asked), step("d", "c")]
    fleet = Fleet(api, [1, 2, 3], *steps)
    fleet.finish(fleet.nodes[0])
    go(api, fleet.nodes[0])
    fleet.finish(fleet.nodes[1])
    found = fleet.steps()["c"]
    if expected is None:
        assert (found["state"], found["reason"]) == ("failed", "near_gone")
        assert found["error"]["places"] == [str(fleet.nodes[0].node_id)]
        return
    names = {str(node.node_id): n for n, node in enumerate(fleet.nodes)}
    rows = api.rows("match_nodes", placement=found["placement"])
    assert {
        names[str(row["node_id"])] for row in rows if row["eligible"] and str(row["node_id"]) in names
    } == expected


def test_a_silent_node_is_gone_while_its_rack_is_there(api: Api, clock: Clock) -> None:
    asked = {"mode": "require", "gone": "fail"}
    steps = [
        step("a"),
        step("b", "a"),
        step("on", "b", near=near(what="node", **asked)),
        step("by", "b", near=near(what="rack", **asked), on_failure="continue"),
    ]
    fleet = Fleet(api, [5, 5, 6], *steps)
    fleet.finish(fleet.nodes[0])
    clock.advance(timedelta(hours=1))
    for node in fleet.nodes[1:]:
        api.rows("heartbeat_node", node=node.node_id, epoch=node.epoch, claims=[])
    fleet.finish(fleet.nodes[2])
    assert fleet.steps()["on"]["reason"] == "near_gone"
    assert fleet.steps()["by"]["state"] == "running"


def test_a_place_that_contradicts_the_placement_fails_the_step(api: Api) -> None:
    asked = near(what="rack", mode="require")
    fleet = Fleet(
        api,
        [1, 2],
        step("a"),
        step("b", "a", near=asked, placement={"require": [{"rack": [2]}]}),
    )
    assert fleet.finish(fleet.nodes[0]) == "a"
    found = fleet.steps()["b"]
    assert (found["state"], found["reason"]) == ("failed", "near_contradicts")
    assert found["error"]["places"] == [1]
    assert api.row("get_workflow_run", run=fleet.run)["state"] == "failed"


def test_what_requires_its_place_does_not_wait_for_a_better_one(api: Api) -> None:
    steps = [
        step("a"),
        step("b", "a", near=near(mode="require")),
        step("c", "a", near=near(mode="require"), options={"patience": 7}),
        step("d", "a", near=near()),
    ]
    fleet = Fleet(api, [1], *steps)
    fleet.finish(fleet.nodes[0])
    rows = api.conn.execute(
        "select s.step_no, c.patience from hwqueue.step s"
        " join hwqueue.placement_class c using (class_id)"
        " where s.run_id = %s order by 1",
        [fleet.run],
    ).fetchall()
    assert [row[1] for row in rows] == [None, timedelta(0), timedelta(seconds=7), None]


def test_a_paused_run_finds_the_place_when_it_goes_on(api: Api) -> None:
    fleet = Fleet(api, [1, 2], step("a"), step("b", "a", near=near(mode="require", gone="fail")))
    [claim] = api.claim(fleet.nodes[0], fleet.queue, qty=1)
    api.rows("pause_workflow_run", run=fleet.run)
    api.rows("complete_lease", lease=claim["lease_id"], token=claim["claim_token"])
    cordon(api, fleet.nodes[0])
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
        ([step("b", near=near("x", gone="fail"))], "spec.steps[0].near.gone", "mode"),
        (
            [step("b", near=near("x", mode="require", weight=3))],
            "spec.steps[0].near.weight",
            "mode",
        ),
        ([step("b", near=near("x", with_=1))], "spec.steps[0].near.with_", "step"),
    ],
)
def test_what_is_refused(api: Api, steps: list[Row], field: str, said: str) -> None:
    spec = {"name": "w", "queue": api.queue(), "steps": steps}
    refusal = api.refused("QHF02", "submit_spec", spec=spec)
    assert refusal.field == field
    assert said in refusal.hint


def test_a_domain_that_does_not_exist_is_refused(api: Api) -> None:
    spec = {"name": "w", "steps": [step("a"), step("b", "a", near=near(what="room"))]}
    assert api.refused("QHC03", "define_workflow", spec=spec).field == "spec.steps[1].near.what"


def test_equal_meanings_are_one_definition(api: Api) -> None:
    def spec(**asked: Any) -> Row:
        return {"name": "same", "steps": [step("a"), step("b", "a", near=near(**asked))]}

    assert api.row("define_workflow", spec=spec())["created"]
    for same in ({"mode": "prefer"}, {"away": False}, {"weight": 100}):
        assert not api.row("define_workflow", spec=spec(**same))["created"]
    assert api.row("define_workflow", spec=spec(away=True))["created"]
