"""Definitions of workflows: defined, submitted, and checked without a run."""

from typing import Any
from uuid import uuid4

import pytest

from tests.calls import Row
from tests.flows import Flow, step
from tests.nests import nested
from tests.sql.api import Api

WAIT = {"name": "a", "kind": "wait", "signal": "go"}
NO_GPU = {"affinity_tags": {"gpu": False}}


def spec(*steps: Row, **more: Any) -> Row:
    """A specification with a name of its own."""
    return {"name": f"w-{uuid4()}", "steps": list(steps)} | more


def test_a_cycle_is_named(api: Api) -> None:
    """Steps without one are in topological order."""
    given = spec(step("z"), step("b", "a"), step("a", "z"), step("c", "z"))
    api.rows("define_workflow", spec=given)
    found = api.row("get_workflow", workflow=given["name"])["spec"]["steps"]
    assert [each["name"] for each in found] == ["z", "a", "c", "b"]
    given = spec(step("a", "c"), step("b", "a"), step("c", "b"), step("d", "c"), step("e"))
    detail = api.refused("QHF02", "define_workflow", spec=given).detail
    assert set(detail["cycle"]) == {"a", "b", "c"}
    assert api.refused("QHF02", "define_workflow", spec=spec(step("a", "a"))).detail["cycle"] == ["a"]
    given = spec(step("a", params={"x": {"$result": "b"}}), step("b", "a"))  # a binding is an edge
    assert "a -> " in api.refused("QHF02", "define_workflow", spec=given).message


def test_equal_meanings_are_one_version(api: Api) -> None:
    given = spec(step("b", "a"), step("a", kind="task", join="all"))
    assert api.row("define_workflow", spec=given)["version"] == 1
    same = given | {"steps": [step("a"), {"name": "b", "task": "b", "after": "a"}]}
    assert not api.row("define_workflow", spec=same)["created"]
    other = api.row("define_workflow", spec=given | {"on_failure": "continue"})
    assert (other["version"], other["created"]) == (2, True)
    assert api.row("get_workflow", workflow=given["name"], version=1)["spec"]["name"]
    [row] = [r for r in api.rows("list_workflows") if r["workflow"] == given["name"]]
    assert (row["version"], row["step_count"]) == (2, 2)


def test_a_run_keeps_the_version_that_it_was_submitted_with(api: Api, queue: str) -> None:
    given = spec(step("a"), queue=queue)
    api.rows("define_workflow", spec=given)
    first = api.row("submit_workflow", workflow=given["name"])
    api.rows("define_workflow", spec=given | {"steps": [step("a"), step("b", "a")]})
    assert len(api.rows("list_workflow_steps", run=first["run_id"])) == 1
    assert api.row("submit_workflow", workflow=given["name"])["version"] == 2
    old = api.row("submit_workflow", workflow=given["name"], options={"version": 1})
    assert old["version"] == 1
    for function in ("submit_workflow", "get_workflow"):
        api.refused("QHF01", function, workflow="none")


@pytest.mark.parametrize(
    ("steps", "field"),
    [
        ([], "spec.steps"),
        ([step("A")], "spec.steps[0].name"),
        ([step("a"), step("a")], "spec.steps"),
        ([step("a", "b")], "spec.steps[0].after"),
        ([step("a", params={"x": {"$result": "b"}})], "spec.steps[0].after"),
        ([step("a", params={"x": {"$item": []}})], "spec.steps[0].params.x"),
        ([step("a", params={"x": [{"$input": "name"}]})], "spec.steps[0].params.x[0].$input"),
        ([step("a", after=["b", "b"])], "spec.steps[0].after[1]"),
        ([step("a", after=[{"step": "b", "on": "never"}])], "spec.steps[0].after[0].on"),
        ([step("a", run_if=[{"op": "in", "values": [1]}])], "spec.steps[0].run_if[0]"),
        ([step("a", options={"lease_id": "x"})], "spec.steps[0].options"),
        ([step("a", kind="gang")], "spec.steps[0].size"),
        ([step("a", kind="gang", size=1)], "spec.steps[0].size"),
        ([step("a", kind="gang", size=2, min_size=3)], "spec.steps[0].min_size"),
        ([step("a", kind="gang", size=2, over=[1])], "spec.steps[0].over"),
        ([step("a", kind="gang", size=2, options={"patience": 1})], "spec.steps[0].options.patience"),
        ([step("a", kind="map")], "spec.steps[0].over"),
        ([step("a", kind="map", over={"a": 1})], "spec.steps[0].over"),
        ([step("a", kind="map", over=[{"$item": []}])], "spec.steps[0].over[0]"),
        ([step("a", kind="map", over=[], tolerate="half")], "spec.steps[0].tolerate"),
        ([step("a", kind="map", over=[], tolerate=-1)], "spec.steps[0].tolerate"),
        ([step("a", kind="map", over=[], max_parallel=0)], "spec.steps[0].max_parallel"),
        ([step("a"), step("b", params={"x": {"$results": "a"}})], "spec.steps[1].params.x"),
        ([step("a", over=[])], "spec.steps[0].over"),
        ([step("a", near={"step": "b"})], "spec.steps[0].near"),
        ([step("a", signal="go")], "spec.steps[0].signal"),
        ([{"name": "a", "kind": "sleep", "for": 1, "queue": "q"}], "spec.steps[0].queue"),
        ([{"name": "a", "kind": "sleep"}], "spec.steps[0].for"),
        ([{"name": "a", "kind": "wait"}], "spec.steps[0].signal"),
        ([WAIT | {"on_timeout": "skip"}], "spec.steps[0].timeout"),
        ([WAIT | {"timeout": 1, "on_timeout": "die"}], "spec.steps[0].on_timeout"),
        ([{"name": "a", "kind": "sleep", "for": 1, "until": {"$input": []}}], "spec.steps[0].for"),
        ([{"name": "a", "kind": "sleep", "until": "soon"}], "spec.steps[0].until"),
        ([{"name": "a", "kind": "sleep", "until": {"x": {"$input": []}}}], "spec.steps[0].until"),
        ([step("a", surprise=1)], "spec.steps[0]"),
        ([step("a", affinity_tags={"gpu": None})], "spec.steps[0].affinity_tags"),
        ([step("b"), step("a", "b", **{"finally": "ended"})], "spec.steps[1].after"),
        ([step("a", **{"finally": "ended"}), step("b", "a")], "spec.steps[1].after"),
        ([{"name": "a"}], "spec.steps[0].task"),
    ],
    ids=str,
)
@pytest.mark.thorough
def test_what_is_refused(api: Api, steps: list[Row], field: str) -> None:
    unnamed = field.endswith(".task") or steps == [{"name": "a", "kind": "wait"}]
    code = "QHA01" if unnamed else "QHF02"
    assert (api.refused(code, "define_workflow", spec=spec(*steps)).field or "").startswith(field)


def test_what_is_not_for_steps_of_its_kind(api: Api) -> None:
    refusal = api.refused("QHF02", "define_workflow", spec=spec(step("a", signal="go")))
    assert 'signal is of kind wait, step "a" is of kind task' in refusal.message
    sleep = {"name": "a", "kind": "sleep", "for": 60}
    options = {"steps": {"a": {"options": {"priority": 1}}}}
    given = spec(sleep, queue=api.queue())
    assert api.fault("submit_spec", spec=given, options=options) == "options.steps.a"
    for first in (sleep, WAIT, {"name": "a", "kind": "workflow", "workflow": "x"}):
        near = spec(first, step("b", "a", near={"step": "a"}))
        refusal = api.refused("QHF02", "define_workflow", spec=near)
        assert refusal.field == "spec.steps[1].near"
        assert refusal.message == 'step "b" is near "a", which has no lease of its own'


def test_limits(api: Api) -> None:
    """And a long chain that keeps to them."""
    many = [step(f"s{n}") for n in range(5001)]
    api.refused("QHF07", "define_workflow", spec=spec(*many))
    api.refused("QHF07", "define_workflow", spec=spec(step("a", params={"x": "y" * 2**20})))
    dense = [
        *(step(f"a{n}") for n in range(142)),
        *(step(f"b{n}", *(f"a{k}" for k in range(142))) for n in range(142)),
    ]
    api.refused("QHF07", "define_workflow", spec=spec(*dense))
    chain = [step("s0"), *(step(f"s{n}", f"s{n - 1}") for n in range(1, 2000))]
    given = spec(*reversed(chain))
    assert api.row("define_workflow", spec=given)["version"] == 1


def test_an_idempotency_key_is_one_run(api: Api, queue: str) -> None:
    given = spec(step("a"), queue=queue)
    api.rows("define_workflow", spec=given)
    arguments = {"workflow": given["name"], "input": {"n": 1}, "options": {"idempotency_key": "k"}}
    first = api.row("submit_workflow", **arguments)
    again = api.row("submit_workflow", **arguments)
    assert (again["run_id"], again["created"]) == (first["run_id"], False)
    traced = {"idempotency_key": "k", "headers": {"traceparent": "00-1"}}
    assert api.row("submit_workflow", **arguments | {"options": traced}) == again
    refusal = api.refused("QHT01", "submit_workflow", **arguments | {"input": {"n": 2}})
    assert refusal.detail["run_id"] == str(first["run_id"])


def test_equal_ad_hoc_runs_share_a_definition(api: Api) -> None:
    """And may have ids of the caller's own."""
    given, run = spec(step("a"), queue=api.queue()), uuid4()
    with api.unchanged(), api.conn.transaction(force_rollback=True):
        api.rows("submit_spec", spec=given)
    api.rows("submit_spec", spec=given)
    arguments = {"spec": given, "options": {"run_id": str(run)}}
    assert api.row("submit_spec", **arguments)["run_id"] == run
    assert api.fault("submit_spec", **arguments) == "options.run_id"
    assert api.one("select count(*) from hwqueue.workflow where name = %s", given["name"]) == 1


def placements(api: Api, run: Row) -> dict[str, Any]:
    """What the steps ask of their nodes, as label: values."""
    return {
        row["step"]: {e["label"]: e["values"] for e in row["placement"].get("require", [])}
        for row in api.rows("list_workflow_steps", run=run["run_id"])
    }


BASE: Row = {"region": ["us"], "zone": ["a"]}
GPU: Row = {"affinity_tags": {"gpu": True}}
ZONE_B: Row = {"affinity_tags": {"zone": "b"}}
# steps, what the submission says, what each step asks then in a workflow that asks for BASE
PLACED: dict[str, tuple[list[Row], Row, Row]] = {
    "run and step must both hold": (
        [step("a"), step("b", **GPU)],
        {"affinity_tags": {"disk": "ssd"}},
        {"a": BASE | {"disk": ["ssd"]}, "b": BASE | {"disk": ["ssd"], "gpu": [True]}},
    ),
    "a step overrides its run": (
        [
            step("a", affinity="override", **ZONE_B),
            step("b", affinity="override", affinity_tags={"zone": None}),
            step("c", affinity="replace", **ZONE_B),
        ],
        {},
        {"a": BASE | {"zone": ["b"]}, "b": {"region": ["us"]}, "c": {"zone": ["b"]}},
    ),
    "a submission overrides the workflow": (
        [step("a")],
        {"affinity": "override", **ZONE_B},
        {"a": BASE | {"zone": ["b"]}},
    ),
    "a submission takes no tag of a step away": (
        [step("a", affinity="override", **GPU), step("b", affinity="replace", **GPU)],
        {"steps": {name: {"affinity_tags": {"gpu": None, "other": None}} for name in "ab"}},
        {"a": BASE | {"gpu": [True]}, "b": {"gpu": [True]}},
    ),
    "a submission speaks of single steps": (
        [step("a"), step("b", "a")],
        {"steps": {"b": GPU | {"options": {"priority": 7}}}},
        {"a": BASE, "b": BASE | {"gpu": [True]}},
    ),
}


@pytest.mark.parametrize("case", PLACED)
def test_what_the_levels_ask_of_a_step(api: Api, queue: str, case: str) -> None:
    steps, options, expected = PLACED[case]
    given = spec(*steps, queue=queue, affinity_tags={"region": "us", "zone": "a"})
    assert placements(api, api.row("submit_spec", spec=given, options=options)) == expected


def test_a_contradiction_names_both_sides(api: Api) -> None:
    given = spec(step("report", **NO_GPU), queue=api.queue(), affinity_tags={"gpu": True})
    refusal = api.refused("QHC04", "submit_spec", spec=given)
    assert (refusal.detail["step"], refusal.detail["level"]) == ("report", ["workflow", "step"])
    assert refusal.detail["left"] == {"affinity_tags": {"gpu": True}}
    assert refusal.detail["right"] == {"affinity_tags": {"gpu": False}}
    assert "override" in refusal.hint
    given = spec(step("a"), queue=api.queue(), affinity_tags={"gpu": True})
    refusal = api.refused("QHC04", "submit_spec", spec=given, options=NO_GPU)
    assert refusal.detail["level"] == ["workflow", "submission"]


@pytest.mark.parametrize(
    ("asked", "options", "level"),
    [
        (({}, {"gpu": True}), NO_GPU, ["submission", "step"]),
        (({"zone": "a"}, {"gpu": True}), NO_GPU, ["submission", "step"]),
        (({"gpu": False}, {"gpu": True}), {"affinity_tags": {"zone": "a"}}, ["workflow", "step"]),
        (({"gpu": True}, {"gpu": True}), NO_GPU | {"affinity": "replace"}, ["submission", "step"]),
        (({"gpu": True}, {}), {"steps": {"a": NO_GPU}}, ["workflow", "submission"]),
        (({}, {"gpu": True}), {"steps": {"a": NO_GPU}}, ["step", "submission"]),
        (
            ({}, {}),
            {
                "placement": {"require": [{"tags": {"gpu": True}}]},
                "steps": {"a": {"placement": {"require": [{"tags": {"gpu": False}}]}}},
            },
            ["submission", "submission"],
        ),
    ],
)
@pytest.mark.parametrize("call", ["submit_spec", "check_workflow"])
@pytest.mark.thorough
def test_a_contradiction_names_the_level_that_asks(
    api: Api, call: str, asked: tuple[Row, Row], options: Row, level: list[str]
) -> None:
    of_workflow, of_step = asked
    given = spec(step("a", affinity_tags=of_step), queue=api.queue(), affinity_tags=of_workflow)
    refusal = api.refused("QHC04", call, spec=given, options=options)
    assert refusal.detail["level"] == level


def test_resources_are_overridden_as_a_whole(api: Api) -> None:
    given = spec(
        step("a", affinity="override", placement={"resources": {"gpu": 1}}),
        queue=api.queue(),
        placement={"resources": {"cpu_milli": 1000}},
    )
    [row] = api.rows("list_workflow_steps", run=api.row("submit_spec", spec=given)["run_id"])
    assert row["placement"]["resources"] == {"gpu": 1}


def test_what_a_submission_cannot_name(api: Api, queue: str) -> None:
    given = spec(step("a"), step("b", "a"), queue=queue)
    refusal = api.refused("QHF06", "submit_spec", spec=given, options={"steps": {"x": {}}})
    assert refusal.detail["step"] == "x"
    given["steps"][1]["queue"] = "nowhere"
    assert api.refused("QHQ01", "submit_spec", spec=given).detail["queue"] == "nowhere"


def test_priorities(api: Api) -> None:
    options = {"priority": 3, "steps": {"c": {"options": {"priority": 5}}}}
    flow = Flow(api, [step("a"), step("b", options={"priority": 9}), step("c")], options=options)
    found = {n: api.lease(row["lease_id"])["priority"] for n, row in flow.steps().items()}
    assert found == {"a": 3, "b": 9, "c": 5}


def test_defaults_of_a_task_are_the_steps_own(api: Api) -> None:
    task = f"task-{uuid4()}"
    api.rows("set_task", task=task, defaults={"max_attempts": 7, "affinity_tags": {"disk": "ssd"}})
    given = spec({"name": "a", "task": task}, queue=api.queue(), affinity_tags={"gpu": True})
    run = api.row("submit_spec", spec=given)
    [row] = api.rows("list_workflow_steps", run=run["run_id"])
    assert placements(api, run) == {"a": {"disk": ["ssd"], "gpu": [True]}}
    assert api.lease(row["lease_id"])["max_attempts"] == 7


def checked(api: Api, given: Any, **options: Any) -> dict[str, Row]:
    """What a check says of each step; it writes nothing."""
    with api.unchanged():
        rows = api.rows("check_workflow", spec=given, options=options)
    return {row["step"]: row for row in rows}


def levels(row: Row) -> dict[str, list[str]]:
    """Which levels ask for each label."""
    labels = [each["label"] for each in row["placement"].get("require", [])]
    return dict(zip(labels, row["came_from"].get("require", []), strict=True))


@pytest.mark.usefixtures("lone")
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
