"""hwqueue task: set by hand, or made those of an app."""

import sys
from pathlib import Path

import pytest

from hwqueue.client import Client
from tests.e2e.conftest import Cli, Shown

TASKS = """
import hwqueue

app = hwqueue.App()


@app.task("train", placement={"resources": {"gpu": 1}}, max_attempts=1)
def train(epochs: int) -> None: ...


@app.task("mail", priority=5, queue="mails")
def mail(to: str) -> None: ...


@app.task("plain")
def plain() -> None: ...
"""
APP = ("--app", "tasks_to_sync:app")
GPU = {"resources": {"gpu": 1}}


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the tasks, in the current folder."""
    path = tmp_path / "tasks_to_sync.py"
    path.write_text(TASKS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "tasks_to_sync", raising=False)
    return path


def test_from_set_to_dropped(cli: Cli, shown: Shown) -> None:
    assert "hwqueue task set" in cli("task", "list").output
    made = shown("task", "set", "train", '{"max_attempts": 1, "labels": null}')
    assert made == {"task": "train", "defaults": {"max_attempts": 1}}
    [listed] = shown("task", "list")
    assert listed == shown("task", "show", "train")
    assert (listed["defaults"], listed["served"]) == ({"max_attempts": 1}, False)
    assert "allowed keys" in cli("task", "set", "train", '{"prio": 1}', code=2).stderr
    cli("task", "drop", "train")
    for verb in ("show", "drop"):
        cli("task", verb, "train", code=3)


def test_sync_makes_them_those_of_the_app(cli: Cli, shown: Shown, app: Path, dsn: str) -> None:
    with Client(dsn, pool_size=1) as client:
        client.set_task("mail", {"priority": 4, "labels": {"a": "b"}})
        client.set_task("plain", {"priority": 1})
        client.set_task("other", {"priority": 9})
        before = client.list_tasks()
        changes = [
            {"task": "train", "option": "max_attempts", "now": None, "then": 1},
            {"task": "train", "option": "placement", "now": None, "then": GPU},
            {"task": "mail", "option": "labels", "now": {"a": "b"}, "then": None},
            {"task": "mail", "option": "priority", "now": 4, "then": 5},
            {"task": "plain", "option": "priority", "now": 1, "then": None},
        ]
        pruned = {"task": "other", "option": "priority", "now": 9, "then": None}
        assert shown("task", "sync", *APP, "--dry-run", code=1) == changes
        assert shown("task", "sync", *APP, "--prune", "--dry-run", code=1) == [*changes, pruned]
        assert client.list_tasks() == before
        assert shown("task", "sync", *APP) == changes
        now = {task.task: task.defaults for task in client.list_tasks()}
        assert now == {
            "mail": {"priority": 5},
            "other": {"priority": 9},
            "train": {"placement": GPU, "max_attempts": 1},
        }
        assert shown("task", "sync", *APP, "--dry-run") == []
        client.set_task("empty")
        assert pruned in shown("task", "sync", *APP, "--prune")
        assert {task.task for task in client.list_tasks()} == {"mail", "train"}
        assert "nothing to change" in cli("task", "sync", *APP, "--prune", "--dry-run").output


def test_a_bad_default_names_its_task(cli: Cli, app: Path) -> None:
    app.write_text(TASKS.replace("max_attempts=1", "max_attempts=0"))
    refused = cli("task", "sync", *APP, code=2).stderr
    assert "task train: defaults.max_attempts must be" in refused


def test_a_gpu_task_spawned_by_sql_goes_to_the_gpu_node(cli: Cli, shown: Shown, app: Path, dsn: str) -> None:
    """The example of the how-to: nodes, sync, and a spawn that says nothing of GPUs."""
    cli("queue", "create", "renders")
    cli("node", "register", "cpu-1")
    cli("node", "register", "gpu-1", "--gpu", "A100")
    cli("task", "sync", *APP)
    able = [row["node_name"] for row in shown("match", "--task", "train") if row["eligible"]]
    assert able == ["gpu-1"]
    assert "--task" in cli("match", code=2).stderr
    with Client(dsn, pool_size=1) as client:
        nodes = {node.name: node for node in client.list_nodes()}
        lease = shown("lease", "spawn", "renders", "train")
        for name, claimed in (("cpu-1", []), ("gpu-1", [lease["lease_id"]])):
            node = nodes[name]
            claims = client.claim_task(["renders"], node.node_id, node.node_epoch)
            assert [str(claim.lease_id) for claim in claims] == claimed
        assert shown("task", "show", "train")["served"] is True
