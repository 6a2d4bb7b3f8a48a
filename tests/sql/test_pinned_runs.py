"""Runs that are pinned to a version of the code: their steps run where that version is deployed."""

from typing import Any
from uuid import uuid4

import pytest

from tests.calls import Row
from tests.flows import each, step
from tests.nests import nested
from tests.sql.api import Api, Node, token

pytestmark = pytest.mark.usefixtures("sound")


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
