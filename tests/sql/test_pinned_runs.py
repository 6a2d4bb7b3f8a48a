"""Runs that are pinned to a version of the code: their steps run where that version is deployed."""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from tests.calls import Row
from tests.flows import broken, each, step
from tests.nests import nested
from tests.sql.api import Api, Node


@pytest.fixture(autouse=True)
def sound(api: Api) -> Iterator[None]:
    """After each test every tally equals its recount."""
    yield
    assert broken(api) == []


def spec(api: Api, *steps: Row, **more: Any) -> Row:
    return {"name": f"w-{uuid4().hex[:12]}", "queue": api.queue(), "steps": list(steps)} | more


def submit(api: Api, given: Row, **options: Any) -> Any:
    return api.row("submit_spec", spec=given, options=options)["run_id"]


def steps_of(api: Api, run: Any) -> dict[str, Row]:
    return {row["step"]: row for row in api.rows("list_workflow_steps", run=run)}


def taken(api: Api, node: Node, given: Row) -> list[str]:
    """Let a node run what is released; the names of the steps."""
    claims = api.claim(node, given["queue"], qty=10)
    for claim in claims:
        api.rows("complete_lease", lease=claim["lease_id"], token=claim["claim_token"])
    api.rows("advance_workflows")
    return [claim["headers"]["step"] for claim in claims]


def old_and_new(api: Api) -> tuple[Node, Node]:
    return api.node(labels={"app_version": "1.9"}), api.node(labels={"app_version": "2.0"})


def test_every_step_runs_on_the_version_that_the_submission_names(api: Api) -> None:
    given = spec(
        api,
        step("a"),
        step("b", "a", affinity="replace"),
        each("m", [1, 2], after=["b"], affinity="override", affinity_tags={"gpu": None}),
        pin_version=True,
    )
    old, new = old_and_new(api)
    submit(api, given, app_version="1.9")
    for names in (["a"], ["b"], ["m", "m"]):
        assert taken(api, new, given) == []
        assert taken(api, old, given) == names


def test_the_origin_of_the_label_is_the_version(api: Api) -> None:
    given = spec(api, step("a", affinity_tags={"gpu": True}), pin_version=True)
    run = submit(api, given, app_version="1.9")
    for row in (
        steps_of(api, run)["a"],
        api.row("check_workflow", spec=given, options={"app_version": "1.9"}),
    ):
        found = zip(row["placement"]["require"], row["came_from"]["require"], strict=True)
        assert {rule["label"]: who for rule, who in found} == {
            "app_version": ["version"],
            "gpu": ["step"],
        }
        pin = next(r for r in row["placement"]["require"] if r["label"] == "app_version")
        assert (pin["op"], pin["values"]) == ("in", ["1.9"])


def test_a_version_that_no_node_runs_any_more_is_what_the_run_waits_for(api: Api) -> None:
    given = spec(api, step("a"), pin_version=True)
    api.node(labels={"app_version": "2.0"})
    run = submit(api, given, app_version="1.9")
    lease = steps_of(api, run)["a"]["lease_id"]
    [reason] = api.row("explain_lease", lease=lease)["sole_blockers"]
    assert reason["predicate"]["label"] == "app_version"
    assert reason["predicate"]["values"] == ["1.9"]


@pytest.mark.thorough
def test_without_a_version_the_submission_is_refused(api: Api) -> None:
    given = spec(api, step("a"), pin_version=True)
    refusal = api.refused("QHA01", "submit_spec", spec=given)
    assert refusal.field == "options.app_version"
    assert "--app-version" in refusal.hint
    api.refused("QHA01", "check_workflow", spec=given)
    wrong: Any
    for wrong in (2, "", "x" * 101, ["1"]):
        refusal = api.refused("QHA01", "submit_spec", spec=given, options={"app_version": wrong})
        assert refusal.field == "options.app_version"
        refusal = api.refused("QHF02", "submit_spec", spec=given | {"pin_version": wrong})
        assert refusal.field == "spec.pin_version"


@pytest.mark.parametrize(
    ("pin", "options", "runs_on"),
    [
        ("1.9", {}, {"old"}),
        ("1.9", {"app_version": "2.0"}, {"new"}),
        (False, {}, {"old", "new"}),
        (None, {"app_version": "2.0"}, {"new"}),
    ],
)
def test_who_names_the_version(api: Api, pin: Any, options: Row, runs_on: set[str]) -> None:
    given = spec(api, step("a"), pin_version=pin)
    nodes = dict(zip(("old", "new"), old_and_new(api), strict=True))
    run = submit(api, given, **options)
    placement = steps_of(api, run)["a"]["placement"]
    found = {row["node_id"]: row for row in api.rows("match_nodes", placement=placement)}
    assert {name for name, node in nodes.items() if found[node.node_id]["eligible"]} == runs_on


def test_a_definition_without_a_pin_is_the_same_as_before(api: Api) -> None:
    given = spec(api, step("a"))
    assert api.row("define_workflow", spec=given)["version"] == 1
    assert not api.row("define_workflow", spec=given | {"pin_version": False})["created"]
    assert api.row("define_workflow", spec=given | {"pin_version": True})["version"] == 2
    assert api.row("get_workflow", workflow=given["name"])["spec"]["pin_version"] is True


def test_a_step_of_another_version_is_refused(api: Api) -> None:
    given = spec(api, step("a", affinity_tags={"app_version": "1.0"}), pin_version=True)
    refusal = api.refused("QHC04", "submit_spec", spec=given, options={"app_version": "2.0"})
    assert refusal.detail["step"] == "a"
    assert "app_version" in refusal.message


@pytest.mark.parametrize(("pin", "runs_on"), [(True, "1.9"), (None, "1.9"), ("2.0", "2.0")])
def test_a_nested_run_has_the_version_of_its_parent_unless_it_names_one(
    api: Api, pin: Any, runs_on: str
) -> None:
    inner = spec(api, step("x"), pin_version=pin)
    api.rows("define_workflow", spec=inner)
    given = spec(api, nested("n", inner["name"]), pin_version=True)
    old, new = old_and_new(api)
    run = submit(api, given, app_version="1.9")
    api.rows("advance_workflows")
    first, second = (old, new) if runs_on == "1.9" else (new, old)
    assert taken(api, second, inner) == []
    assert taken(api, first, inner) == ["x"]
    assert api.row("get_workflow_run", run=run)["state"] == "completed"


def test_steps_that_a_handler_adds_run_on_its_version(api: Api) -> None:
    given = spec(api, step("a"), pin_version=True)
    old, new = old_and_new(api)
    submit(api, given, app_version="1.9")
    [claim] = api.claim(old, given["queue"])
    end = {"lease": claim["lease_id"], "token": claim["claim_token"]}
    more = {"name": "more", "steps": [step("x")], "queue": given["queue"]}
    api.rows("add_steps", **end, spec=more)
    api.rows("complete_lease", **end)
    api.rows("advance_workflows")
    assert taken(api, new, given) == []
    assert taken(api, old, given) == ["x"]


def test_a_retry_keeps_the_version(api: Api) -> None:
    given = spec(api, step("a"), pin_version=True)
    old, new = old_and_new(api)
    run = submit(api, given, app_version="1.9")
    assert taken(api, old, given) == ["a"]
    api.rows("retry_workflow_run", run=run, options={"mode": "all"})
    assert taken(api, new, given) == []
    assert taken(api, old, given) == ["a"]


def test_one_key_does_not_stand_for_two_versions(api: Api) -> None:
    given = spec(api, step("a"), pin_version=True)
    submit(api, given, app_version="1.9", idempotency_key="k")
    options = {"app_version": "2.0", "idempotency_key": "k"}
    api.refused("QHT01", "submit_spec", spec=given, options=options)
