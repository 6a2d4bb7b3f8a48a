"""hwqueue workflow: dry runs, items of maps, options of submissions, runs below others."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from tests.e2e.test_cli import Cli, cli, shown
from tests.e2e.test_cli_workflow import SPEC, Runner, runner

__all__ = ["cli", "runner", "shown"]

pytestmark = pytest.mark.thorough

MAP = {
    "name": "scores",
    "steps": [{"name": "score", "kind": "map", "task": "score", "over": [1, 2, 3], "tolerate": 3}],
}
PYTHON = """
from hwqueue import Step, Workflow

training = Workflow(name="training", affinity_tags={"gpu": True}, tasks=[Step("train", "train")])
"""


def test_items_of_a_map(runner: Runner, cli: Cli, shown: Callable[..., Any]) -> None:
    run = str(runner.client.submit_spec(MAP).run_id)
    runner.complete("score", result={"long": "x" * 100})
    runner.fail("score")
    line = ("workflow", "results", run, "score")
    header, *lines = cli(*line).stdout.splitlines()
    assert header.split() == [
        *("item", "name", "state", "node", "attempt", "lasted", "returned", "lease_id"),
    ]
    done, broken, waits = [row.split() for row in lines]
    assert done[:5] == ["0", "-", "completed", "gpu-1", "1"]
    assert "xxx…" in lines[0]
    assert "x" * 60 not in lines[0]
    assert broken[:5] == ["1", "-", "failed", "gpu-1", "1"]
    assert "OSError: no memory" in lines[1]
    assert waits[:5] == ["2", "-", "pending", "-", "0"]
    [failed] = shown(*line, "--state", "failed")
    assert (failed["item"], failed["node_name"]) == (1, "gpu-1")
    assert cli("lease", "show", failed["lease_id"])
    assert shown(*line, "--limit", "1")[0]["result"] == {"long": "x" * 100}
    assert "there may be more: --after 1" in cli(*line, "--limit", "2").stderr
    assert [each["item"] for each in shown(*line, "--after", "1")] == [2]
    assert [each["item"] for each in shown(*line, "--after", "-2")] == [-1]
    assert "no such items" in cli(*line, "--state", "cancelled").stderr
    assert "has no step other" in cli("workflow", "results", run, "other", code=2).stderr.replace('"', "")
    told = cli("workflow", "status", run).stderr
    assert f"items of score: hwqueue workflow results {run} score --state failed" in told


def test_members_of_a_gang(runner: Runner, cli: Cli) -> None:
    train = {"name": "train", "kind": "gang", "task": "train", "size": 2, "together": "rack"}
    run = runner.client.submit_spec({"name": "ranks", "steps": [train]}).run_id
    [step] = runner.client.list_workflow_steps(run)
    told = cli("workflow", "status", str(run))
    assert f"waits for gang {step.gang_id} of 2" in told.stdout
    assert f"members of train: hwqueue workflow results {run} train" in told.stderr
    assert f"gang of train: hwqueue gang explain {step.gang_id}" in told.stderr
    assert str(run) in cli("gang", "show", str(step.gang_id)).stdout


def test_a_dry_run_tells_what_each_step_asks_and_where_it_could_run(
    runner: Runner,
    cli: Cli,
    shown: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    steps = [
        {"name": "prepare", "task": "prepare"},
        {"name": "train", "task": "train", "affinity_tags": {"gpu": True}},
    ]
    Path("flow.json").write_text(json.dumps({"name": "flow", "steps": steps}))
    line = ("workflow", "check", "flow.json")
    told = cli(*line, code=1).stdout.splitlines()
    assert told[0].split() == ["step", "task", "queue", "matching", "free", "code"]
    assert told[1].split()[:5] == ["prepare", "prepare", "default", "1", "1"]
    assert told[2].split()[:5] == ["train", "train", "default", "0", "0"]
    begin = told.index("train")
    assert told[begin + 1] == "  step: gpu in true"
    assert told[-1] == "  but for gpu in true: 1 node"
    found = shown(*line, code=1)
    assert [each["nodes_matching"] for each in found] == [1, 0]
    whole = shown(*line, "--tags", "zone=a", code=1)
    assert whole[1]["came_from"] == {"require": [["step"], ["submission"]]}
    asks = 'train={"options": {"labels": {"app": "x"}}, "affinity_tags": {"gpu": true}}'
    assert [each["nodes_matching"] for each in shown(*line, "--step", asks, code=1)] == [1, 0]
    runner.client.define_workflow({"name": "easy", "steps": steps[:1]})
    assert "ready" in cli("workflow", "check", "--workflow", "easy").stdout
    Path("flows_to_check.py").write_text(PYTHON)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "flows_to_check", raising=False)
    told_of_app = cli("workflow", "check", "--app", "flows_to_check:training", code=1).stdout
    assert "workflow: gpu in true" in told_of_app
    assert "give a FILE" in cli("workflow", "check", code=2).stderr
    assert "give a FILE" in cli(*line, "--workflow", "easy", code=2).stderr
    assert shown("workflow", "runs") == []


def test_a_run_of_ones_own_id_that_is_alone(runner: Runner, cli: Cli, shown: Callable[..., Any]) -> None:
    runner.client.define_workflow(SPEC)
    line = ("workflow", "run", "training", "--input", '{"dataset": 1}', "--unique", "nightly")
    own = str(uuid4())
    first = shown(*line, "--run-id", own)
    assert (first["run_id"], first["created"]) == (own, True)
    assert shown(*line) == first | {"created": False}
    assert own in cli(*line, "--on-conflict", "raise", code=1).stderr
    second = shown(*line, "--on-conflict", "replace")
    assert second["created"]
    assert runner.client.get_workflow_run(own).state == "cancelled"


def test_options_of_single_steps(runner: Runner, cli: Cli, shown: Callable[..., Any]) -> None:
    runner.client.define_workflow(SPEC)
    line = ("workflow", "run", "training", "--input", '{"dataset": 1}')
    given = '{"options": {"max_attempts": 9}, "affinity_tags": {"gpu": true}}'
    run = shown(*line, "--step", f"prepare={given}")["run_id"]
    step = runner.client.list_workflow_steps(run)[0]
    assert step.lease_id is not None
    assert runner.client.get_lease(step.lease_id).max_attempts == 9
    assert (step.placement or {})["require"][0]["label"] == "gpu"
    assert "is not NAME=JSON" in cli(*line, "--step", "prepare", code=2).stderr
    twice = ("--step", "prepare={}", "--step", "prepare={}")
    assert "given twice" in cli(*line, *twice, code=2).stderr


def test_a_run_for_later(runner: Runner, cli: Cli, shown: Callable[..., Any]) -> None:
    runner.client.define_workflow(SPEC)
    line = ("workflow", "run", "training", "--input", '{"dataset": 1}')
    for more in (("--delay", "2h"), ("--available-at", "2100-01-01T00:00:00Z")):
        run = shown(*line, *more)["run_id"]
        assert runner.client.list_workflow_steps(run)[0].lease_state == "scheduled"
        assert "◔  prepare  scheduled" in cli("workflow", "status", run).stdout


def test_runs_below_others_are_listed(runner: Runner, shown: Callable[..., Any]) -> None:
    runner.client.define_workflow({"name": "below", "steps": [{"name": "a", "task": "a"}]})
    steps = [{"name": "n", "kind": "workflow", "workflow": "below"}]
    above = str(runner.client.submit_spec({"name": "above", "steps": steps}).run_id)
    runner.client.advance_workflows()

    def listed(*line: str) -> list[str]:
        return [each["run_id"] for each in shown("workflow", "runs", *line)]

    [nested] = listed("--parent", above)
    assert nested != above
    assert listed("--root", above) == listed("--nested") == [nested]
    assert listed("--no-nested") == [above]
