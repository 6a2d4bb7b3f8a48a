"""hwqueue workflow: from a definition to the end of a run; dry runs, items of maps, runs below others."""

import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from rich.console import Console

from hwqueue.cli import run_view
from hwqueue.client import Client
from hwqueue.types import Claim, NodeSpec
from tests.e2e.conftest import Cli, Shown

SPEC = {
    "name": "training",
    "steps": [
        {"name": "prepare", "task": "prepare_data", "params": {"dataset": {"$input": ["dataset"]}}},
        {"name": "train", "task": "train", "params": {"data": {"$result": "prepare"}}},
        {"name": "tell", "task": "tell", "after": [{"step": "train", "on": "ended"}]},
    ],
}
PYTHON = """
from hwqueue import Step, Workflow

training = Workflow(name="training", tasks=[Step("prepare", "prepare_data")])
other = 7
"""


class Runner:
    """A node that settles what it claims, by the names of steps."""

    def __init__(self, client: Client) -> None:
        self.client = client
        client.create_queue("default")
        self.node = UUID("0197f3a2-7c1e-7000-8000-000000000001")
        self.epoch = client.register_node(self.node, NodeSpec(name="gpu-1", instance_id="1"))

    def claim(self, step: str) -> Claim:
        [claim] = self.client.claim_task(["default"], self.node, self.epoch)
        assert (claim.headers or {})["step"] == step
        return claim

    def complete(self, step: str, result: Any = None) -> None:
        claim = self.claim(step)
        self.client.complete_lease(claim.lease_id, claim.claim_token, result=result)

    def fail(self, step: str) -> None:
        claim = self.claim(step)
        error = {"type": "OSError", "message": "no memory"}
        self.client.fail_lease(claim.lease_id, claim.claim_token, error=error, retry=False)


@pytest.fixture
def runner(dsn: str) -> Iterator[Runner]:
    with Client(dsn, pool_size=1) as client:
        yield Runner(client)


@pytest.fixture
def submitted(runner: Runner, shown: Shown) -> str:
    runner.client.define_workflow(SPEC)
    run_id: str = shown("workflow", "run", "training", "--input", '{"dataset": "x"}')["run_id"]
    return run_id


def test_definitions(cli: Cli, shown: Shown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("training.json").write_text(json.dumps(SPEC))
    assert "hwqueue workflow define" in cli("workflow", "list").output
    made = shown("workflow", "define", "training.json")
    assert (made["workflow"], made["version"], made["created"]) == ("training", 1, True)
    assert "nothing has changed" in cli("workflow", "define", "training.json").stderr
    Path("flows_to_define.py").write_text(PYTHON)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "flows_to_define", raising=False)
    app = ("workflow", "define", "--app")
    assert shown(*app, "flows_to_define:training")["version"] == 2
    assert "an hwqueue.Workflow is needed" in cli(*app, "flows_to_define:other", code=2).stderr
    assert "FILE, or --app" in cli("workflow", "define", code=2).stderr
    assert "at least one step" in cli("workflow", "define", '{"name": "x"}', code=2).stderr
    [listed] = shown("workflow", "list")
    assert (listed["version"], listed["step_count"]) == (2, 1)
    assert len(shown("workflow", "show", "training", "--version", "1")["spec"]["steps"]) == 3
    cli("queue", "create", "default")
    cli("workflow", "run", "training", "--version", "1", "--input", '{"dataset": "x"}')
    found = shown("workflow", "versions", "training", "none")
    assert [(each["version"], each["run_counts"]) for each in found] == [(2, {}), (1, {"running": 1})]
    assert "1 running" in cli("workflow", "versions", "training").stdout
    assert "no workflow" in cli("workflow", "versions", "none").stderr
    told = cli("workflow", "show", "training", "--version", "1").stdout
    assert "tell     tell          train ended" in told
    refused = cli("workflow", "show", "none", code=3).stderr
    assert "hwqueue workflow define FILE" in refused


def test_a_line_for_each_step(runner: Runner, cli: Cli, submitted: str) -> None:
    runner.complete("prepare", result="s3")
    claim = runner.claim("train")
    told = cli("workflow", "status", submitted).stdout.splitlines()
    assert told[0].startswith(f"run {submitted} of training version 1: running after ")
    assert [line.split() for line in told[2:]] == [
        ["✓", "prepare", "completed", "gpu-1", "1", "-"],
        ["●", "train", "running", "gpu-1", "1", "-"],
        ["○", "tell", "waiting", "-", "-", "after", "train"],
    ]
    error = {"type": "OSError", "message": "no memory"}
    runner.client.fail_lease(claim.lease_id, claim.claim_token, error=error, retry=False)
    runner.client.deregister_node(runner.node)
    lines = cli("workflow", "status", submitted).stdout.splitlines()[3:]
    assert lines[0].endswith("OSError: no memory")
    assert lines[1].split()[:3] == ["◔", "tell", "pending"]
    assert "no node" in lines[1]


def test_watching_ends_as_the_run_ends(runner: Runner, cli: Cli, shown: Shown, submitted: str) -> None:
    line = ("workflow", "status", submitted)
    assert "is running" in cli(*line, "--watch", "--timeout", "0s", code=7).stderr
    assert "--timeout goes with --watch" in cli(*line, "--timeout", "1s", code=2).stderr
    found = shown(*line)
    assert (found["run_id"], found["input"]) == (submitted, {"dataset": "x"})
    assert [step["step"] for step in found["steps"]] == ["prepare", "train", "tell"]

    def work() -> None:
        runner.complete("prepare", result="s3")
        runner.fail("train")
        runner.complete("tell")

    worker = threading.Thread(target=work)
    worker.start()
    told = cli(*line, "--watch", "--timeout", "1m", code=1).stdout.splitlines()
    worker.join()
    assert told[-1].startswith(f"run {submitted} of training version 1: failed (step_failed)")
    assert told[-2] == "tell  completed  gpu-1"
    assert "train  failed  gpu-1  OSError: no memory" in told
    assert shown(*line, "--watch", code=1)["state"] == "failed"


def test_a_submission_may_be_watched(runner: Runner, cli: Cli, shown: Shown) -> None:
    runner.client.define_workflow({"name": "short", "steps": [{"name": "tell", "task": "tell"}]})
    line = ("workflow", "run", "short", "--key", "k", "--watch")
    late = cli(*line, "--timeout", "0s", code=7).stderr
    run_id = late.split()[1]
    assert f"run {run_id} of workflow short is running" in late
    runner.fail("tell")
    told = cli(*line, code=1).stdout
    assert f"run {run_id} of short version 1, key k: failed" in told.splitlines()[-1]
    assert shown(*line, code=1)["run_id"] == run_id
    refused = cli("workflow", "run", "short", "--timeout", "1s", code=2).stderr
    assert "--timeout goes with --watch" in refused
    assert [each.run_id for each in runner.client.list_workflow_runs()] == [UUID(run_id)]


def test_watching_on_a_terminal_redraws(
    runner: Runner, cli: Cli, submitted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Console(force_terminal=True, width=120, record=True)
    monkeypatch.setattr(run_view, "Console", lambda: screen)
    runner.client.cancel_workflow_run(submitted)
    cli("workflow", "status", submitted, "--watch", code=6)
    told = screen.export_text()
    assert "cancelled" in told
    assert "prepare" in told


def test_changes_are_shown_then_asked_then_made(
    runner: Runner, cli: Cli, shown: Shown, submitted: str
) -> None:
    def states() -> list[str]:
        return [step.state for step in runner.client.list_workflow_steps(submitted)]

    cancel = ("workflow", "cancel", submitted, "--reason", "too dear")
    assert shown(*cancel, "--dry-run") == [
        {"step": "prepare", "now": "running", "then": "cancelled"},
        {"step": "train", "now": "waiting", "then": "skipped"},
        {"step": "tell", "now": "waiting", "then": "skipped"},
    ]
    refused = cli(*cancel, code=1, stdin="n\n")
    assert "3 steps change" in refused.output
    assert states() == ["running", "waiting", "waiting"]
    assert cli(*cancel, stdin="y\n").stdout.split()[-1] == "cancelled"
    assert states() == ["cancelled", "skipped", "skipped"]
    retry = ("workflow", "retry", submitted)
    assert len(shown(*retry, "--dry-run")) == 3
    assert shown(*retry, "--yes")["state"] == "running"
    assert shown("workflow", "pause", submitted)["state"] == "paused"
    assert shown("workflow", "resume", submitted)["state"] == "running"
    skip = ("workflow", "skip", submitted, "prepare", "--result", '"s3"', "--reason", "by hand")
    assert "prepare" in cli(*skip, "--dry-run").stdout
    assert shown(*skip, "--yes")["state"] == "running"
    assert states() == ["completed", "running", "waiting"]
    assert runner.claim("train").params == {"data": "s3"}
    assert "train" in cli(*skip[:3], "none", "--yes", code=2).stderr
    gone = "00000000-0000-0000-0000-000000000000"
    assert f"run {gone} does not exist" in cli("workflow", "cancel", gone, code=3).stderr


def test_an_update_is_shown_then_asked_then_made(
    runner: Runner, cli: Cli, shown: Shown, submitted: str
) -> None:
    line = ("workflow", "update", submitted)
    west = (*line, "--tags", "zone=west", "--app-version", "2.5")
    told = cli(*west, "--dry-run").stdout
    assert "update: app_version in 2.5, zone in west" in told
    assert [each["nodes_matching"] for each in shown(*west, "--dry-run")] == [0, 0]
    told = cli(*line, "--tags", "zone=west", "--dry-run").stdout
    assert "but for zone in west: 1 node" in told
    refused = cli(*west, code=1, stdin="n\n")
    assert "2 steps change; no node matches 2 of them" in refused.output
    assert [each["changed"] for each in shown(*west, "--yes")] == [True, True]
    again = cli(*line, "--step", "train", "--app-version", "2.6", "--yes")
    assert again.stdout.endswith("\n\ntrain\n  update: app_version in 2.6, zone in west\n")
    assert f"follow it: hwqueue workflow status {submitted} --watch" in again.stderr
    mend = (*line, "--step", "train", "--any-version", "--tags", '{"zone": null}')
    [found] = shown(*mend, "--affinity", "override", "--yes")
    assert found["placement"] == {}
    told = cli(*line, *mend[5:], "--affinity", "override", "--yes").stdout
    assert told.endswith("no\ntell   task  waiting  yes\n\ntell\n  any node\n")
    assert "--affinity" in cli(*line, code=2).stderr
    assert "exclude" in cli(*west, "--any-version", code=2).stderr
    assert "is running" in cli(*line, "--step", "prepare", "--any-version", "-y", code=1).stderr


MAP = {
    "name": "scores",
    "steps": [{"name": "score", "kind": "map", "task": "score", "over": [1, 2, 3], "tolerate": 3}],
}
PINNED_TO_GPUS = """
from hwqueue import Step, Workflow

training = Workflow(name="training", affinity_tags={"gpu": True}, tasks=[Step("train", "train")])
"""


def test_items_of_a_map(runner: Runner, cli: Cli, shown: Shown) -> None:
    run = str(runner.client.submit_spec(MAP).run_id)
    runner.complete("score", result={"long": "x" * 100})
    runner.fail("score")
    line = ("workflow", "results", run, "score")
    header, *lines = cli(*line).stdout.splitlines()
    assert header.split() == [*("item", "name", "state", "node", "attempt", "lasted", "returned", "lease_id")]
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


def test_a_dry_run_tells_what_each_step_asks_and_where_it_could_run(
    runner: Runner, cli: Cli, shown: Shown, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    assert (told[begin + 1], told[-1]) == ("  step: gpu in true", "  but for gpu in true: 1 node")
    found = shown(*line, code=1)
    assert [each["nodes_matching"] for each in found] == [1, 0]
    whole = shown(*line, "--tags", "zone=a", code=1)
    assert whole[1]["came_from"] == {"require": [["step"], ["submission"]]}
    asks = 'train={"options": {"labels": {"app": "x"}}, "affinity_tags": {"gpu": true}}'
    assert [each["nodes_matching"] for each in shown(*line, "--step", asks, code=1)] == [1, 0]
    runner.client.define_workflow({"name": "easy", "steps": steps[:1]})
    assert "ready" in cli("workflow", "check", "--workflow", "easy", "--input", '{"n": 1}').stdout
    Path("flows_to_check.py").write_text(PINNED_TO_GPUS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "flows_to_check", raising=False)
    told_of_app = cli("workflow", "check", "--app", "flows_to_check:training", code=1).stdout
    assert "workflow: gpu in true" in told_of_app
    assert "give a FILE" in cli("workflow", "check", code=2).stderr
    assert "give a FILE" in cli(*line, "--workflow", "easy", code=2).stderr
    assert shown("workflow", "runs") == []
