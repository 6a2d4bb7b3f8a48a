"""What workflows look like that are written in Python; each function of workflows has its faces."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from hwqueue import App, Placement
from hwqueue.errors import ConfigError
from hwqueue.workflow import (
    Nested,
    Sleep,
    Step,
    Wait,
    Workflow,
    WorkflowBuilder,
    ended,
    failed,
    index,
    item,
    literal,
    near,
    result,
    results,
    run,
    run_input,
)

app = App()


@app.task("prepare-data", queue="cpu", max_attempts=2, affinity_tags={"os": "linux"})
def prepare_data(dataset: str) -> dict[str, str]:
    return {"path": dataset}


def specification(builder: WorkflowBuilder) -> dict[str, Any]:
    return builder.build().as_json()


def only_step(**said: Any) -> dict[str, Any]:
    [written] = Workflow(name="w", tasks=[Step("a", "task", **said)]).as_json()["steps"]
    return dict(written)


def test_the_builder_and_the_constructor_write_the_same() -> None:
    built = (
        WorkflowBuilder("gpu_training")
        .with_affinity(gpu=True)
        .with_affinity({"memory": "high"})
        .task("prepare", prepare_data, override_affinity={"gpu": False})
        .task("train", "train", after="prepare", max_attempts=3)
        .with_options(deadline=timedelta(hours=3), queue="gpus")
        .build()
    )
    written = Workflow(
        name="gpu_training",
        affinity_tags={"gpu": True, "memory": "high"},
        queue="gpus",
        deadline=timedelta(hours=3),
        tasks=[
            Step("prepare", prepare_data, affinity_tags={"gpu": False}, affinity="override"),
            Step("train", "train", after=["prepare"], options={"max_attempts": 3}),
        ],
    )
    assert built.as_json() == written.as_json()
    assert built.as_json() == {
        "name": "gpu_training",
        "affinity_tags": {"gpu": True, "memory": "high"},
        "queue": "gpus",
        "deadline": 10800.0,
        "steps": [
            {
                "name": "prepare",
                "task": "prepare-data",
                "queue": "cpu",
                "affinity_tags": {"gpu": False},
                "affinity": "override",
                "options": {"max_attempts": 2},
            },
            {"name": "train", "task": "train", "after": ["prepare"], "options": {"max_attempts": 3}},
        ],
    }


def test_a_builder_does_not_change() -> None:
    base = WorkflowBuilder("w").task("a", "task")
    assert len(specification(base.task("b", "task"))["steps"]) == 2
    assert len(specification(base)["steps"]) == 1
    base.with_affinity(gpu=True)
    assert "affinity_tags" not in specification(base)


def test_what_a_task_asks_of_a_node_counts_where_its_step_says_nothing() -> None:
    plain = WorkflowBuilder("w").task("a", prepare_data)
    assert specification(plain)["steps"][0]["affinity_tags"] == {"os": "linux"}
    told = WorkflowBuilder("w").task("a", prepare_data, placement=Placement().resources(gpu=1))
    [step] = specification(told)["steps"]
    assert "affinity_tags" not in step
    assert step["placement"] == {"resources": {"gpu": 1}}


def test_values_are_written_at_any_depth() -> None:
    workflow = Workflow(
        name="w",
        tasks=[
            Step("a", "task"),
            Step("b", "task", params={"of": [result("a", "shards", 0)], "in": run_input("x")}),
            Step("c", "task", params=result("b", default=None)),
            Step("d", "task", params={"l": literal({"$result": 1}), "run": run("id")}),
        ],
        result=result("c"),
    )
    written = workflow.as_json()
    assert [step.get("params") for step in written["steps"]] == [
        None,
        {"of": [{"$result": "a", "path": ["shards", 0]}], "in": {"$input": ["x"]}},
        {"$result": "b", "default": None},
        {"l": {"$literal": {"$result": 1}}, "run": {"$run": "id"}},
    ]
    assert written["result"] == {"$result": "c"}


def test_edges_and_conditions() -> None:
    loss = result("a", "loss")
    workflow = Workflow(
        name="w",
        tasks=[
            Step("a", "task"),
            Step("b", "task", after=failed("a"), join="any"),
            Step("c", "task", after=["a", ended("b")], run_if=[loss < 0.1, run_input("go") == 1]),
        ],
    )
    _, b, c = workflow.as_json()["steps"]
    assert b["after"] == [{"step": "a", "on": "failed"}]
    assert c["after"] == ["a", {"step": "b", "on": "ended"}]
    assert c["run_if"] == [
        {"step": "a", "path": ["loss"], "op": "lt", "values": [0.1]},
        {"input": ["go"], "op": "in", "values": [1]},
    ]
    with pytest.raises(TypeError, match="neither true nor false"):
        assert loss < 0.1
    with pytest.raises(TypeError, match="cannot be compared"):
        _ = run("id") == "x"


def test_maps() -> None:
    built = (
        WorkflowBuilder("count")
        .task("split", "split")
        .map(
            "words",
            "count_words",
            over=result("split", "shards"),
            params={"shard": item("uri"), "no": index()},
            max_parallel=2,
            tolerate="10 %",
            max_attempts=3,
        )
        .map("more", "work", over=results("words", "n", default=0))
        .task("total", "add_up", params={"counts": results("more")})
        .build()
    )
    words = {
        "name": "words",
        "kind": "map",
        "task": "count_words",
        "params": {"shard": {"$item": ["uri"]}, "no": {"$index": True}},
        "max_parallel": 2,
        "tolerate": "10 %",
        "options": {"max_attempts": 3},
        "over": {"$result": "split", "path": ["shards"]},
    }
    assert built.as_json()["steps"][1] == words
    assert built.as_json()["steps"][2]["over"] == {"$results": "words", "path": ["n"], "default": 0}
    assert [edge.step for step in built.steps for edge in step.edges] == ["split", "words", "more"]
    assert only_step(over=[]) == {"name": "a", "kind": "map", "task": "task", "over": []}
    with pytest.raises(ConfigError, match="max_parallel and tolerate are of a map"):
        Step("a", "task", tolerate=1)


def test_gangs() -> None:
    """The three ways write the same, and a default of the task that no member has is left out."""

    @app.task("fit", patience=timedelta(minutes=5))
    def fit(rank: int) -> None: ...

    options: dict[str, Any] = {
        "size": 4,
        "min_size": 2,
        "together": ["rack", "label:zone"],
        "same": ["gpu_model"],
        "hold": timedelta(minutes=1),
        "params": {"rank": index()},
    }
    builder = WorkflowBuilder("w").gang("train", fit, on_lost="replace", max_attempts=3, **options)
    [written] = specification(builder)["steps"]
    assert written == {
        "name": "train",
        "kind": "gang",
        "task": "fit",
        "queue": "default",
        "size": 4,
        "min_size": 2,
        "together": ["rack", "label:zone"],
        "same": ["gpu_model"],
        "on_lost": "replace",
        "hold": written["hold"],
        "params": {"rank": {"$index": True}},
        "options": {"max_attempts": 3},
    }
    assert only_step(size=2, together="node") == {
        "name": "a", "kind": "gang", "task": "task", "size": 2, "together": "node"
    }  # fmt: skip
    flow = App().workflow("w")

    @flow.step("train", task="fit", on_lost="replace", max_attempts=3, **options)
    def _train(rank: int) -> None: ...

    assert flow.workflow.as_json()["steps"] == [written | {"queue": "default"}]
    for said, why in (
        ({"min_size": 2}, "min_size is of a gang: give size, too"),
        ({"size": 2, "over": [1]}, "over makes it a map, size a gang"),
        ({"size": 2, "hold": 5}, "hold"),
        ({"size": 2, "options": {"patience": timedelta(1)}}, "patience is no option of a gang"),
    ):
        with pytest.raises(ConfigError, match=why):
            only_step(**said)


def test_items_near_items() -> None:
    builder = (
        WorkflowBuilder("w")
        .map("a", "a", over=[1])
        .map("b", "b", over=results("a"), near=near("a", "rack", match="item", mode="require"))
        .step(Step("c", "c", near=near(Step("a", "a"), "label:zone", away=True)))
    )
    _, of_items, of_a_step = specification(builder)["steps"]
    assert of_items["near"] == {"step": "a", "what": "rack", "mode": "require", "match": "item"}
    assert of_a_step["near"] == {"step": "a", "what": "label:zone", "away": True}
    assert "match" not in near("a").as_json()


def test_options_of_a_step() -> None:
    a = Step("a", "task")  # may be named by itself
    b = Step("b", "task", after=a, params={"x": result(a)})
    assert Workflow(name="w", tasks=[a, b]).as_json()["steps"][1]["after"] == ["a"]
    step = only_step(options={"claim_timeout": timedelta(minutes=2), "priority": None})
    assert step["options"] == {"claim_timeout": 120.0}
    with pytest.raises(ConfigError, match="step 'a': unique is no option of a step"):
        only_step(options={"unique": {"key": "k"}})
    with pytest.raises(ConfigError, match="step 'a': claim_timeout must be a timedelta"):
        only_step(options={"claim_timeout": 5})
    with pytest.raises(ConfigError, match="goes without"):
        WorkflowBuilder("w").task("a", "t", override_affinity={"x": 1}, affinity_tags={"y": 1})


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ([], "it has no steps"),
        ([Step("a", "t"), Step("a", "t")], "two steps are called 'a'"),
        ([Step("A", "t")], "'A' is no name of a step"),
        ([Step("a", "t", after="b")], "'a' comes after 'b', which is not there"),
        ([Step("a", "t", params={"x": result("b")})], "'a' comes after 'b', which is not there"),
        ([Step("a", "t", after="a")], "wait for each other: a -> a"),
        ([Step("a", "t", after="b"), Step("b", "t", after="a")], "wait for each other: "),
        ([Step("a", "t", run_if=[result("a") == 1])], "wait for each other: a -> a"),
    ],
)
def test_what_cannot_run_is_refused(steps: list[Step], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Workflow(name="w", tasks=steps)


@pytest.mark.parametrize("pin", [True, "2.4"])
def test_runs_are_pinned_to_a_version(pin: bool | str) -> None:
    builder = WorkflowBuilder("w").with_options(pin_version=pin).task("a", "a")
    assert specification(builder)["pin_version"] == pin
    flow = App().workflow("w", pin_version=pin)
    flow.add(Step("a", "a"))
    assert flow.workflow.as_json() == specification(builder)
    no_pin = Workflow(name="w", tasks=[Step("a", "a")], pin_version=False)
    assert "pin_version" not in no_pin.as_json()
    kept = builder.with_options(retain_failed=timedelta(days=1))
    assert specification(kept)["retain"] == {"failed": 86400.0}


@pytest.mark.parametrize(
    ("said", "why"),
    [({"pin_version": pin}, "pin_version") for pin in ("", "x" * 101, 2, ["2.4"])]
    + [({"deadline": 5}, "deadline must be a timedelta")],
)
def test_options_of_a_workflow_that_cannot_be(said: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Workflow(name="w", tasks=[Step("a", "a")], **said)


def test_a_step_for_the_failure_of_the_run() -> None:
    places: dict[str, Any] = {"near": near("train"), "replace_affinity": True, "max_attempts": 3}
    built = (
        WorkflowBuilder("w")
        .task("train", "train")
        .on_failure("tell", prepare_data, params={"why": run("id")}, queue="mail", **places)
        .on_failure("stop", "stop", override_affinity={"gpu": False}, run_if=run_input("loud"))
    )
    same = (
        WorkflowBuilder("w")
        .task("train", "train")
        .task("tell", prepare_data, params={"why": run("id")}, queue="mail", final="failed", **places)
        .task("stop", "stop", override_affinity={"gpu": False}, run_if=run_input("loud"), final="failed")
    )
    assert specification(built) == specification(same)
    assert [step.get("finally") for step in specification(built)["steps"]] == [None, "failed", "failed"]


def test_waits_and_sleeps_say_how_they_fail_and_when_they_run() -> None:
    built = (
        WorkflowBuilder("w")
        .sleep("nap", timedelta(minutes=5), on_failure="ignore")
        .sleep("rest", timedelta(minutes=5), final="ended")
        .wait("paid", "payment", on_failure="continue")
        .wait("sign-off", "signed", final="failed")
    )
    found = [(step.get("on_failure"), step.get("finally")) for step in specification(built)["steps"]]
    assert found == [("ignore", None), (None, "ended"), ("continue", None), (None, "failed")]


def test_steps_that_wait() -> None:
    built = (
        WorkflowBuilder("order")
        .sleep("pause", timedelta(minutes=5))
        .sleep("open", result("pause", "opens_at"), join="any")
        .sleep("year", datetime(2030, 1, 1, tzinfo=UTC), after=ended("open"))
        .wait("paid", "payment", timeout=timedelta(days=2), on_timeout="skip", after="pause")
        .task("ship", "ship", after="paid")
        .build()
    )
    assert built.as_json()["steps"] == [
        {"name": "pause", "kind": "sleep", "for": 300.0},
        {"name": "open", "kind": "sleep", "until": {"$result": "pause", "path": ["opens_at"]}, "join": "any"},
        {
            "name": "year",
            "kind": "sleep",
            "until": "2030-01-01T00:00:00+00:00",
            "after": [{"step": "open", "on": "ended"}],
        },
        {
            "name": "paid",
            "kind": "wait",
            "signal": "payment",
            "timeout": 172800.0,
            "on_timeout": "skip",
            "after": ["pause"],
        },
        {"name": "ship", "task": "ship", "after": ["paid"]},
    ]
    by_hand = [*built.steps[:3], Wait("paid", "payment", timedelta(2), "skip", after="pause")]
    by_hand.append(Step("ship", "ship", after=by_hand[3]))
    assert Workflow(name="order", tasks=by_hand).as_json() == built.as_json()


def test_steps_that_wait_are_checked() -> None:
    with pytest.raises(ConfigError, match="step 'pause': until is 60"):
        Sleep("pause", 60)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="step 'paid': timeout"):
        Wait("paid", "payment", 60)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="comes after 'b'"):
        Workflow(name="w", tasks=[Sleep("a", result("b"))])


def test_a_step_that_is_a_run_of_another_workflow() -> None:
    built = (
        WorkflowBuilder("nightly")
        .task("extract", "extract")
        .workflow(
            "load",
            "load_tables",
            input={"day": run_input("day"), "files": result("extract", "files")},
            version=3,
            on_failure="ignore",
        )
        .task("report", "report", after="load")
        .build()
    )
    assert built.as_json()["steps"][1] == {
        "name": "load",
        "kind": "workflow",
        "workflow": "load_tables",
        "version": 3,
        "input": {"day": {"$input": ["day"]}, "files": {"$result": "extract", "path": ["files"]}},
        "on_failure": "ignore",
    }
    assert [edge.step for edge in built.steps[1].edges] == ["extract"]
    whole = Nested("load", "load_tables", result("extract"))
    assert whole.as_json()["input"] == {"$result": "extract"}
    with pytest.raises(ConfigError, match="step 'load': workflow is"):
        Nested("load", built)  # type: ignore[arg-type]


ROOT = Path(__file__).parents[2]
NAMES = ("workflows", "runs", "run_reports", "checkpoints", "children")
MODULES = [ROOT / "sql" / "api" / f"{name}.sql" for name in NAMES]
FACES = {"Python": "client/_async", "the command line": "cli", "HTTP": "server/routers"}

OF_PAGES = "for the pages of the dashboard; what it is made of can be read elsewhere"
OF_WORKERS = "workers call it, through their Python client"
OF_CLAIMS = "a handler calls it with the token of its claim"
WITHOUT = {
    ("submit_spec", "the command line"): "define the file, then run it: a name is to be found again",
    ("submit_workflows", "the command line"): "a loop of `workflow run --key` does not submit twice",
    ("submit_workflows", "HTTP"): "a request for each, with an Idempotency-Key",
    ("run_input", "the command line"): "`workflow status --json` has the input",
    ("run_input", "HTTP"): "`GET /runs/{run_id}` has the input",
    ("advance_workflows", "the command line"): OF_WORKERS,
    ("advance_workflows", "HTTP"): OF_WORKERS,
    ("take_ended_runs", "the command line"): OF_WORKERS,
    ("take_ended_runs", "HTTP"): OF_WORKERS,
    ("preview_retry", "the command line"): "--dry-run is the retry itself, rolled back",
    **{
        (function, face): OF_CLAIMS
        for face in ("the command line", "HTTP")
        for function in (
            "save_checkpoint",
            "checkpoints",
            "take_signal",
            "suspend_lease",
            "add_items",
            "add_steps",
        )
    },
    **{
        (function, face): OF_PAGES
        for face in ("the command line", "HTTP")
        for function in ("get_run_workflow", "list_step_details", "summarise_runs")
    },
}


def public() -> list[str]:
    """The functions of the modules in `sql/api`."""
    begins = re.compile(r"^create or replace function hwqueue\.(\w+)", re.MULTILINE)
    return [name for module in MODULES for name in begins.findall(module.read_text())]


@pytest.mark.parametrize("face", FACES)
def test_each_function_has_this_face_or_a_reason(face: str) -> None:
    text = "\n".join(path.read_text() for path in (ROOT / "hwqueue" / FACES[face]).rglob("*.py"))
    called = {name for name in public() if re.search(rf"\b{name}\(|\bClient\.{name}\b", text)}
    without = {name for name, where in WITHOUT if where == face}
    assert set(public()) - called == without
