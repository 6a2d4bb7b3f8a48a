"""Dry runs of submissions: where each step could run, and which level asks for what."""

from typing import Any
from uuid import uuid4

import pytest

from tests.calls import Row
from tests.flows import step
from tests.nests import nested
from tests.sql.api import Api


def spec(*steps: Row, **more: Any) -> Row:
    return {"name": f"w-{uuid4().hex[:12]}", "steps": list(steps)} | more


def checked(api: Api, given: Any, **options: Any) -> dict[str, Row]:
    """What a check says of each step; it writes nothing."""
    with api.unchanged():
        rows = api.rows("check_workflow", spec=given, options=options)
    return {row["step"]: row for row in rows}


def levels(row: Row) -> dict[str, list[str]]:
    """Which levels ask for each label."""
    labels = [each["label"] for each in row["placement"].get("require", [])]
    return dict(zip(labels, row["came_from"].get("require", []), strict=True))


def test_a_check_judges_each_step_and_writes_nothing(api: Api, queue: str) -> None:
    api.node(labels={"gpu": True})
    given = spec(
        step("a", affinity="override", affinity_tags={"gpu": None}),
        step("b", "a"),
        step("c", "b", affinity_tags={"disk": "ssd"}),
        queue=queue,
        affinity_tags={"gpu": True},
    )
    found = checked(api, given)
    assert [row["step_no"] for row in found.values()] == [1, 2, 3]
    counts = {name: (row["nodes_matching"], row["nodes_free"]) for name, row in found.items()}
    assert counts == {"a": (1, 1), "b": (1, 1), "c": (0, 0)}
    assert [row["code"] for row in found.values()] == ["ready", "ready", "label_missing"]
    assert found["c"]["permanent"] is True
    [reason] = found["c"]["reasons"]
    assert reason["predicate"]["label"] == "disk"
    assert (found["a"]["queue"], found["a"]["task_name"]) == (queue, "a")


def test_a_check_counts_what_runs(api: Api, queue: str) -> None:
    lab = {"lab": queue}
    node = api.node(capacity={"cpu_milli": 1000}, labels=lab)
    api.needing(queue, cpu_milli=1000)
    assert api.claim(node, queue)
    given = spec(step("a", placement={"resources": {"cpu_milli": 1000}}), queue=queue, affinity_tags=lab)
    row = checked(api, given)["a"]
    assert row["code"] == "nodes_support_but_contended"
    assert (row["nodes_matching"], row["nodes_free"]) == (1, 0)


def test_what_others_keep_away_counts_for_a_class_that_is_not_written(api: Api, queue: str) -> None:
    lab = {"lab": queue}
    node = api.node(labels=lab)
    away = {"require": [{"leases": {"labels": {"app": queue}}, "domain": "node", "away": True}]}
    api.spawn(queue, placement=away)
    api.settle_terms()
    assert len(api.claim(node, queue)) == 1
    given = spec(step("a", options={"labels": {"app": queue}}), queue=queue, affinity_tags=lab)
    row = checked(api, given)["a"]
    assert (row["code"], row["nodes_free"]) == ("anti_affinity_conflict", 0)
    away["require"][0]["domain"] = "rack"  # a term that nobody has published
    own = checked(api, spec(step("a", placement=away), queue=queue, affinity_tags=lab))["a"]
    assert own["code"] == "ready"


def test_each_part_of_a_placement_says_where_it_came_from(api: Api) -> None:
    task = f"task-{uuid4()}"
    api.rows("set_task", task=task, defaults={"placement": {"resources": {"cpu_milli": 5, "gpu": 1}}})
    given = spec(
        {"name": "a", "task": task, "affinity_tags": {"disk": "ssd", "gpu": True}},
        queue=api.queue(),
        affinity_tags={"gpu": True},
        placement={"prefer": [{"weight": 10, "when": {"rack": [1]}}]},
    )
    options = {"affinity_tags": {"zone": "west"}, "steps": {"a": {"affinity_tags": {"room": 7}}}}
    run = api.row("submit_spec", spec=given, options=options)["run_id"]
    [listed] = api.rows("list_workflow_steps", run=run)
    for row in (checked(api, given, **options)["a"], listed):
        assert levels(row) == {
            "gpu": ["workflow", "step"],
            "zone": ["submission"],
            "disk": ["step"],
            "room": ["submission"],
        }
        assert row["came_from"]["prefer"] == [["workflow"]]
        assert row["came_from"]["resources"] == {"cpu_milli": ["task"], "gpu": ["task"]}


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("and", {"region": ["workflow"], "gpu": ["workflow", "step"]}),
        ("override", {"region": ["workflow"], "gpu": ["step"]}),
        ("replace", {"gpu": ["step"]}),
    ],
)
def test_what_a_step_takes_away_is_not_named(api: Api, mode: str, expected: Row) -> None:
    given = spec(
        step("a", affinity=mode, affinity_tags={"gpu": True}),
        queue=api.queue(),
        affinity_tags={"region": "us-east", "gpu": True},
    )
    assert levels(checked(api, given)["a"]) == expected


def test_a_defined_workflow_is_checked_by_name_and_version(api: Api) -> None:
    given = spec(step("a", affinity_tags={"one": 1}), queue=api.queue())
    api.rows("define_workflow", spec=given)
    api.rows("define_workflow", spec=given | {"steps": [step("a", affinity_tags={"two": 2})]})
    assert levels(checked(api, given["name"])["a"]) == {"two": ["step"]}
    assert levels(checked(api, given["name"], version=1)["a"]) == {"one": ["step"]}
    api.refused("QHF01", "check_workflow", spec="nothing", options={})
    api.refused("QHQ01", "check_workflow", spec=spec(step("a"), queue="nowhere"))
    assert api.fault("check_workflow", spec=given, options={"version": 1}) == "options.version"


@pytest.mark.thorough
def test_a_check_refuses_what_a_submission_refuses(api: Api, queue: str) -> None:
    given = spec(step("a"), queue=queue, affinity_tags={"gpu": True})
    refused: list[tuple[str, Row]] = [
        ("QHC04", {"affinity_tags": {"gpu": False}}),
        ("QHF06", {"steps": {"x": {}}}),
        ("QHA01", {"steps": {"a": {"params": 1}}}),
        ("QHA01", {"affinity": "not"}),
    ]
    for code, options in refused:
        checked_so = api.refused(code, "check_workflow", spec=given, options=options)
        assert checked_so == api.refused(code, "submit_spec", spec=given, options=options)


def test_a_check_says_what_nested_runs_would_run(api: Api, queue: str) -> None:
    name = f"nested-{uuid4().hex[:12]}"
    inner = step("i", affinity_tags={"gpu": True})
    for count in (1, 2):
        given = {"name": name, "queue": queue, "steps": [inner, *map(step, "abc"[:count])]}
        api.rows("define_workflow", spec=given)
    steps = [nested("new", name), nested("old", name, version=1), nested("none", f"{name}-x")]
    found = checked(api, spec(step("z"), *steps, queue=queue))
    assert list(found) == ["z", "new", "none", "old"]
    assert {(row["kind"], row["workflow"], row["version"]) for row in found.values()} == {
        ("task", None, None),
        ("workflow", name, 2),
        ("workflow", name, 1),
        ("workflow", f"{name}-x", None),
    }
    assert (found["new"]["code"], found["none"]["code"]) == ("ready", "nested_refused")
    assert f'"{name}-x" does not exist' in found["none"]["headline"]
    contradicted = checked(api, spec(*steps[:1], queue=queue), affinity_tags={"gpu": False})
    assert contradicted["new"]["code"] == "nested_refused"
    assert "gpu" in contradicted["new"]["headline"]
    assert contradicted["new"]["version"] == 2
