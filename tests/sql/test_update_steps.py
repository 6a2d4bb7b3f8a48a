"""What steps ask is changed while they wait, and the version that a run is pinned to."""

from typing import Any
from uuid import uuid4

import pytest

from tests.calls import Row
from tests.flows import Flow, each, finish, step
from tests.nests import below, define, nested
from tests.sql.api import Api, Node, token

pytestmark = pytest.mark.usefixtures("sound")


WEST = {"zone": "west"}


def update(flow: Flow, *steps: str, **changes: Any) -> dict[str, Row]:
    """Update steps of a run, all without names; the rows by step."""
    named = {"steps": list(steps)} if steps else {}
    rows = flow.calls.rows("update_steps", run=flow.run, changes=changes, **named)
    return {row["step"]: row for row in rows}


def levels(row: Row) -> dict[str, list[str]]:
    """Which levels ask for each label."""
    labels = [rule["label"] for rule in row["placement"].get("require", [])]
    return dict(zip(labels, row["came_from"].get("require", []), strict=True))


def test_steps_that_wait_ask_what_the_update_says(api: Api) -> None:
    flow = Flow(api, [step("a"), step("b", "a"), step("c", "b")])
    found = update(flow, affinity_tags=WEST)
    states = {name: (row["state"], row["changed"]) for name, row in found.items()}
    assert states == dict.fromkeys("bc", ("waiting", True))
    assert levels(found["b"]) == {"zone": ["update"]}
    assert flow.steps()["b"]["placement"] == found["b"]["placement"]
    assert flow.steps()["a"]["placement"] == {}
    with api.unchanged():
        assert not any(row["changed"] for row in update(flow, affinity_tags=WEST).values())

    flow.complete("a")
    assert flow.claims() == {}
    west = api.node(labels=WEST)
    [claim] = api.claim(west, flow.queue)
    assert claim["headers"]["step"] == "b"


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("and", {"gpu": ["workflow"], "zone": ["step"], "disk": ["update"]}),
        ("override", {"zone": ["update"], "disk": ["update"]}),
        ("replace", {"zone": ["update"], "disk": ["update"]}),
    ],
)
def test_an_update_is_the_innermost_level(api: Api, mode: str, expected: Row) -> None:
    steps = [step("a"), step("b", "a", affinity_tags={"zone": "east"})]
    flow = Flow(api, steps, affinity_tags={"gpu": True}, placement={"resources": {"gpu": 2}})
    tags: Row = {"disk": "ssd"}
    if mode != "and":
        tags |= {"zone": "west"} | ({"gpu": None} if mode == "override" else {})
    more = {} if mode == "and" else {"placement": {"resources": {"cpu_milli": 5}}}
    row = update(flow, affinity_tags=tags, affinity=mode, **more)["b"]
    assert levels(row) == expected
    assert row["came_from"]["resources"] == (
        {"gpu": ["workflow"]} if mode == "and" else {"cpu_milli": ["update"]}
    )


def test_an_update_takes_the_place_of_the_one_before(api: Api) -> None:
    flow = Flow(api, [step("a"), step("b", "a", affinity_tags={"gpu": True}), step("c", "b")])
    submitted = flow.steps()["b"]["placement"]
    update(flow, "b", affinity_tags=WEST, app_version="2.0")
    assert levels(update(flow, affinity_tags={"disk": "ssd"})["b"]) == {
        "gpu": ["step"],
        "disk": ["update"],
        "app_version": ["update"],
    }
    assert levels(flow.steps()["c"]) == {"disk": ["update"]}
    assert levels(update(flow, affinity="and")["b"]) == {"gpu": ["step"], "app_version": ["update"]}
    assert update(flow, "b", app_version=None)["b"]["placement"] == submitted
    assert flow.steps()["b"]["came_from"]["require"] == [["step"]]


@pytest.mark.parametrize(
    ("changes", "side"),
    [
        ({"affinity_tags": {"gpu": False}}, "workflow"),
        ({"affinity_tags": {"disk": "hdd"}}, "submission"),
        ({"affinity_tags": {"zone": "west"}}, "step"),
        ({"affinity_tags": {"app_version": "2.0"}}, "version"),
        ({"app_version": "2.0", "affinity_tags": {"app_version": "3.0"}}, "step"),
    ],
)
def test_a_contradiction_names_both_sides_and_changes_nothing(api: Api, changes: Row, side: str) -> None:
    steps = [step("a"), step("x", "a"), step("b", "a", affinity_tags={"zone": "east"})]
    options = {"app_version": "1.9", "affinity_tags": {"disk": "ssd"}}
    flow = Flow(api, steps, affinity_tags={"gpu": True}, options=options)
    refusal = api.refused("QHC04", "update_steps", run=flow.run, changes=changes)
    assert (refusal.detail["level"], refusal.field) == ([side, "update"], "changes")
    assert api.refused("QHC04", "preview_update", run=flow.run, changes=changes) == refusal
    mends = {"app_version": None} if side == "version" else {"affinity": "override"}
    if "app_version" not in changes:
        assert update(flow, **changes, **mends)["b"]["changed"]


def test_steps_leave_a_version_that_no_node_runs_any_more(api: Api) -> None:
    """Those that wait, a nested run that is not submitted, and what a handler adds."""
    steps = [step("a"), step("b", "a"), nested("n", "below", "a")]
    flow = Flow(api, steps, options={"app_version": "1.9"})
    define(flow, "below", step("x"))
    old, new = api.node(labels={"app_version": "1.9"}), api.node(labels={"app_version": "2.0"})
    found = update(flow, app_version="2.0")
    assert levels(found["b"]) == {"app_version": ["update"]}
    assert found["b"]["placement"]["require"][0]["values"] == ["2.0"]
    assert (found["n"]["placement"], found["n"]["changed"]) == (None, True)
    [claim] = api.claim(old, flow.queue)
    finish(api, claim)
    api.rows("advance_workflows")
    assert api.claim(old, flow.queue, qty=9) == []
    claims = {row["headers"]["step"]: row for row in api.claim(new, flow.queue, qty=9)}
    assert set(claims) == {"b", "x"}
    more = {"name": "more", "steps": [step("y")], "queue": flow.queue}
    api.rows("add_steps", **token(claims["b"]), spec=more)
    assert api.claim(old, flow.queue, qty=9) == []
    [added] = api.claim(new, flow.queue, qty=9)
    assert added["headers"]["step"] == "y"
    refusal = api.refused("QHF04", "update_steps", run=flow.run, changes={"app_version": None}, steps=["n"])
    assert refusal.detail["nested_run_id"] == str(below(flow, "n").run)


def test_a_nested_run_begins_with_the_update_of_its_step(api: Api) -> None:
    flow = Flow(api, [step("a"), nested("n", "below", "a")], affinity_tags={"gpu": True})
    define(flow, "below", step("x", affinity_tags={"disk": "ssd"}))
    api.refused("QHC04", "update_steps", run=flow.run, changes={"affinity_tags": {"gpu": False}})
    update(flow, affinity_tags={"gpu": None} | WEST, affinity="override")
    api.rows("skip_step", run=flow.run, step="a")
    api.rows("advance_workflows")
    assert set(levels(below(flow, "n").steps()["x"])) == {"zone", "disk"}


@pytest.mark.parametrize(
    ("steps", "changes", "code"),
    [
        (["a"], {"affinity_tags": WEST}, "QHF04"),
        (["b", "done"], {"affinity_tags": WEST}, "QHF04"),
        (["s"], {"affinity_tags": WEST}, "QHA01"),
        (["none"], {"affinity_tags": WEST}, "QHF06"),
        (["b", None], {"affinity_tags": WEST}, "QHA01"),
        (["b"], {}, "QHA01"),
        (["b"], {"labels": {"x": "y"}}, "QHA01"),
        (["b"], {"affinity": "or"}, "QHA01"),
        (["b"], {"app_version": 2}, "QHA01"),
        (["b"], {"affinity_tags": {"zone": None}}, "QHF02"),
        (["b"], {"placement": {"require": 7}}, "QHC03"),
    ],
)
def test_what_is_refused(api: Api, steps: list[Any], changes: Row, code: str) -> None:
    sleep = {"name": "s", "kind": "sleep", "for": 60, "after": ["b"]}
    flow = Flow(api, [step("done"), step("a", "done"), step("b", "a"), sleep])
    flow.complete("done")
    for function in ("update_steps", "preview_update"):
        refusal = api.refused(code, function, run=flow.run, changes=changes, steps=steps)
        if code == "QHF04":
            assert refusal.detail["state"] == {"a": "running", "b": "completed"}[steps[0]]


def test_a_run_that_has_ended_is_refused(api: Api) -> None:
    flow, changes = Flow(api, [step("a"), step("b", "a")]), {"affinity_tags": WEST}
    flow.fail("a")
    refusal = api.refused("QHF04", "update_steps", run=flow.run, changes=changes)
    assert refusal.detail["state"] == "failed"
    for function in ("update_steps", "preview_update"):
        api.refused("QHF03", function, run=uuid4(), changes=changes)


def test_of_a_map_that_has_begun_the_items_that_are_left_change(api: Api) -> None:
    flow = Flow(api, [each("m", [1, 2, 3], max_parallel=1), step("z", "m")])
    first = flow.items()[0]
    assert update(flow, "m", affinity_tags=WEST)["m"]["state"] == "running"
    flow.settle(first)
    assert flow.items() == {}
    west = api.node(labels=WEST)
    [second] = api.claim(west, flow.queue)
    assert second["headers"]["item"] == 1
    assert update(flow, affinity="and")["m"]["changed"]
    finish(api, second)
    api.rows("advance_workflows")
    third = flow.items()[2]
    assert set(update(flow, affinity_tags=WEST)) == {"z"}  # nothing of it is left to spawn
    changes = {"affinity_tags": WEST}
    api.refused("QHF04", "update_steps", run=flow.run, changes=changes, steps=["m"])
    flow.settle(third)


def test_a_step_stays_near_the_others(api: Api) -> None:
    """A map that has begun, and a step that is released after the update."""
    near = {"step": "a", "mode": "require"}
    flow = Flow(
        api,
        [step("a"), each("m", [1, 2], after=["a"], near=near, max_parallel=1),
         step("b", "m", near=near)],
    )  # fmt: skip
    flow.complete("a")
    first = flow.items()[0]
    found = update(flow, placement={"resources": {"cpu_milli": 7}})
    assert set(found) == {"m", "b"}
    assert found["m"]["came_from"]["require"][0][0].startswith("near a -> node ")
    again = update(flow, placement={"resources": {"cpu_milli": 7}})
    assert not any(row["changed"] for row in again.values())
    flow.settle(first)
    second = flow.items()[1]
    assert api.lease(second["lease_id"])["placement"] == found["m"]["placement"]
    flow.settle(second)
    flow.complete("b")
    assert found["b"]["placement"].items() < flow.steps()["b"]["placement"].items()
    assert flow.steps()["b"]["came_from"]["resources"] == {"cpu_milli": ["update"]}


def test_held_steps_and_a_retry_keep_the_update(api: Api) -> None:
    """What the submission said about a step stays, too."""
    own = {"affinity_tags": {"room": 7}, "options": {"max_attempts": 5, "labels": {"app": "x"}}}
    flow = Flow(api, [step("a"), step("b", "a")], options={"steps": {"b": own}})
    api.rows("pause_workflow_run", run=flow.run)
    flow.complete("a")
    row = update(flow, "b", affinity_tags=WEST)["b"]
    assert row["state"] == "waiting"
    assert levels(row) == {"room": ["submission"], "zone": ["update"]}
    api.rows("resume_workflow_run", run=flow.run)
    west = api.node(labels=WEST | {"room": 7})
    for _ in range(2):
        assert flow.claims() == {}
        [claim] = api.claim(west, flow.queue)
        lease = api.lease(claim["lease_id"])
        assert (lease["max_attempts"], lease["labels"]) == (5, {"app": "x"})
        finish(api, claim)
        assert flow.state == "completed"
        api.rows("retry_workflow_run", run=flow.run, options={"steps": ["b"]})


def test_a_preview_says_what_the_update_then_does(api: Api) -> None:
    lab = {"lab": uuid4().hex}
    api.node(labels=WEST | lab)
    flow = Flow(
        api, [step("a"), step("b", "a"), step("c", "b", affinity_tags={"disk": "ssd"}),
              nested("n", "missing", "c")]
    )  # fmt: skip
    changes = {"affinity_tags": WEST | lab}
    with api.unchanged():
        rows = api.rows("preview_update", run=flow.run, changes=changes)
    assert [(row["step"], row["nodes_matching"], row["code"], row["changed"]) for row in rows] == [
        ("b", 1, "ready", True),
        ("c", 0, "label_missing", True),
        ("n", None, "nested_refused", True),
    ]
    found = update(flow, **changes)
    for row in rows:
        assert {key: row[key] for key in found[row["step"]]} == found[row["step"]]


class Pinned:
    """A workflow that is pinned, and a node for each of two versions of the code."""

    def __init__(self, api: Api, *steps: Row, pin: Any = True) -> None:
        self.api, self.queue = api, api.queue()
        self.old, self.new = (api.node(labels={"app_version": version}) for version in ("1.9", "2.0"))
        name = f"w-{uuid4().hex[:12]}"
        self.spec: Row = {"name": name, "queue": self.queue, "steps": list(steps), "pin_version": pin}

    def submit(self, version: str | None = "1.9", **options: Any) -> Any:
        """Submit a run for a version, if any; its id."""
        options |= {"app_version": version} if version else {}
        return self.api.row("submit_spec", spec=self.spec, options=options)["run_id"]

    def taken(self, node: Node) -> list[str]:
        """Let a node run what is released; the names of the steps."""
        claims = self.api.claim(node, self.queue, qty=10)
        for claim in claims:
            self.api.rows("complete_lease", **token(claim))
        self.api.rows("advance_workflows")
        return [claim["headers"]["step"] for claim in claims]

    def runs_old(self, *names: str) -> bool:
        """Whether the old version gets these steps, and the new one none."""
        return (self.taken(self.new), self.taken(self.old)) == ([], list(names))


def steps_of(api: Api, run: Any) -> dict[str, Row]:
    return {row["step"]: row for row in api.rows("list_workflow_steps", run=run)}


def test_every_step_runs_on_the_version_that_the_submission_names(api: Api) -> None:
    tags = {"affinity": "override", "affinity_tags": {"gpu": None}}
    flow = Pinned(api, step("a"), step("b", "a", affinity="replace"), each("m", [1, 2], after=["b"], **tags))
    flow.submit()
    for names in (["a"], ["b"], ["m", "m"]):
        assert flow.runs_old(*names)


def test_the_origin_of_the_label_is_the_version(api: Api) -> None:
    flow = Pinned(api, step("a", affinity_tags={"gpu": True}))
    checked = api.row("check_workflow", spec=flow.spec, options={"app_version": "1.9"})
    for row in (steps_of(api, flow.submit())["a"], checked):
        found = zip(row["placement"]["require"], row["came_from"]["require"], strict=True)
        assert {rule["label"]: who for rule, who in found} == {"app_version": ["version"], "gpu": ["step"]}
        pin = next(r for r in row["placement"]["require"] if r["label"] == "app_version")
        assert (pin["op"], pin["values"]) == ("in", ["1.9"])


def test_a_version_that_no_node_runs_any_more_is_what_the_run_waits_for(api: Api) -> None:
    lease = steps_of(api, Pinned(api, step("a")).submit("1.8"))["a"]["lease_id"]
    [reason] = api.row("explain_lease", lease=lease)["sole_blockers"]
    assert (reason["predicate"]["label"], reason["predicate"]["values"]) == ("app_version", ["1.8"])


@pytest.mark.thorough
def test_without_a_version_the_submission_is_refused(api: Api) -> None:
    spec = Pinned(api, step("a")).spec
    refusal = api.refused("QHA01", "submit_spec", spec=spec)
    assert refusal.field == "options.app_version"
    assert "--app-version" in refusal.hint
    api.refused("QHA01", "check_workflow", spec=spec)
    wrong: Any
    for wrong in (2, "", "x" * 101, ["1"]):
        refusal = api.refused("QHA01", "submit_spec", spec=spec, options={"app_version": wrong})
        assert refusal.field == "options.app_version"
        refusal = api.refused("QHF02", "submit_spec", spec=spec | {"pin_version": wrong})
        assert refusal.field == "spec.pin_version"


@pytest.mark.parametrize(
    ("pin", "version", "runs_on"),
    [
        ("1.9", None, {"old"}),
        ("1.9", "2.0", {"new"}),
        (False, None, {"old", "new"}),
        (None, "2.0", {"new"}),
    ],
)
def test_who_names_the_version(api: Api, pin: Any, version: str | None, runs_on: set[str]) -> None:
    flow = Pinned(api, step("a"), pin=pin)
    placement = steps_of(api, flow.submit(version))["a"]["placement"]
    found = {row["node_id"]: row for row in api.rows("match_nodes", placement=placement)}
    nodes = {"old": flow.old, "new": flow.new}
    assert {name for name, node in nodes.items() if found[node.node_id]["eligible"]} == runs_on


def test_a_definition_without_a_pin_is_the_same_as_before(api: Api) -> None:
    given = Pinned(api, step("a")).spec
    pin = given.pop("pin_version")
    assert api.row("define_workflow", spec=given)["version"] == 1
    assert not api.row("define_workflow", spec=given | {"pin_version": False})["created"]
    assert api.row("define_workflow", spec=given | {"pin_version": pin})["version"] == 2
    assert api.row("get_workflow", workflow=given["name"])["spec"]["pin_version"] is True


def test_a_step_or_a_key_of_another_version_is_refused(api: Api) -> None:
    spec = Pinned(api, step("a", affinity_tags={"app_version": "1.0"})).spec
    refusal = api.refused("QHC04", "submit_spec", spec=spec, options={"app_version": "2.0"})
    assert refusal.detail["step"] == "a"
    assert "app_version" in refusal.message
    flow = Pinned(api, step("a"))
    flow.submit(idempotency_key="k")
    options = {"app_version": "2.0", "idempotency_key": "k"}
    api.refused("QHT01", "submit_spec", spec=flow.spec, options=options)


@pytest.mark.parametrize("pin", [True, None, "2.0"])
def test_a_nested_run_has_the_version_of_its_parent_unless_it_names_one(api: Api, pin: Any) -> None:
    inner = Pinned(api, step("x"), pin=pin)
    api.rows("define_workflow", spec=inner.spec)
    run = Pinned(api, nested("n", inner.spec["name"])).submit()
    api.rows("advance_workflows")
    first, second = (inner.new, inner.old) if pin == "2.0" else (inner.old, inner.new)
    assert inner.taken(second) == []
    assert inner.taken(first) == ["x"]
    assert api.row("get_workflow_run", run=run)["state"] == "completed"


def test_steps_that_a_handler_adds_run_on_its_version(api: Api) -> None:
    flow = Pinned(api, step("a"))
    flow.submit()
    [claim] = api.claim(flow.old, flow.queue)
    more = {"name": "more", "steps": [step("x")], "queue": flow.queue}
    api.rows("add_steps", **token(claim), spec=more)
    api.complete(claim)
    api.rows("advance_workflows")
    assert flow.runs_old("x")


def test_a_retry_keeps_the_version(api: Api) -> None:
    flow = Pinned(api, step("a"))
    run = flow.submit()
    assert flow.runs_old("a")
    api.rows("retry_workflow_run", run=run, options={"mode": "all"})
    assert flow.runs_old("a")
