"""hwqueue gang, everywhere and task: from a spawn to an end, set by hand or made those of an app."""

import sys
from pathlib import Path
from uuid import uuid4

import pytest

from hwqueue.client import Client
from hwqueue.types import NodeSpec
from tests.e2e.conftest import Cli, Shown
from tests.e2e.worker_support import QUEUE


def reap(producer: Client) -> None:
    for _ in range(4):
        producer.reap()


def test_from_spawned_to_cancelled(producer: Client, cli: Cli, shown: Shown) -> None:
    own = cli("gang", "spawn", QUEUE, "--member", "work:3", "--same", "zone").stdout.strip()
    [listed] = shown("gang", "list", "--state", "waiting")
    assert (listed["gang_id"], listed["size"], listed["reason"]) == (own, 3, None)
    reap(producer)
    assert "insufficient_capacity" in cli("gang", "list").stdout

    producer.register_node(uuid4(), NodeSpec(name="n1", instance_id="1", labels={"zone": "a"}))
    found = shown("gang", "show", own)
    assert (found["state"], found["reason"]) == ("waiting", "insufficient_capacity")
    text = cli("gang", "show", own).stdout
    assert "next_try_at" in text
    assert text.count("scheduled") == 3

    cli("gang", "cancel", own, stdin="n\n", code=1)
    assert producer.get_gang(own).state == "waiting"
    asked = cli("gang", "cancel", own, "--reason", "wrong data", stdin="y\n")
    assert f"cancel gang {own} of 3 leases, which is waiting?" in asked.stderr
    reap(producer)
    assert shown("gang", "cancel", own, "--yes") == {"gang_id": own, "state": "cancelled"}
    newer = producer.spawn_gang(QUEUE, [{"task": "work", "count": 2}])[0].gang_id
    hint = cli("gang", "list", "--limit", "1").stderr
    assert hint.endswith(f"--before-gang {newer}\n")
    assert [each["gang_id"] for each in shown("gang", "list", *hint.split()[-4:])] == [own]


def test_why_it_waits(producer: Client, cli: Cli, shown: Shown) -> None:
    """The lease in the way is named, and a gang that is not spawned is told the same."""
    node = uuid4()
    spec = NodeSpec(name="n1", instance_id="1", rack=1, slots=3)
    epoch = producer.register_node(node, spec)
    held = producer.spawn_lease(QUEUE, "evaluate").lease_id
    producer.claim_task([QUEUE], node, epoch)
    asked = ("--member", "work:3", "--together", "rack")
    gang_id = cli("gang", "spawn", QUEUE, *asked).stdout.strip()
    printed = cli("gang", "explain", gang_id).stdout
    assert f"gang {gang_id} is waiting in {QUEUE}" in printed
    assert "no rack has room for all 3; rack 1 has room for 2" in printed
    assert "  rack 1: room for 2, empty for 3, on 1 node" in printed
    assert f"    lease {held} of task evaluate on n1 for " in printed
    assert "  2 of 3 have room now: rack 1" in printed
    assert f"  rack 1 has room for all once lease {held} is stopped" in printed
    ahead = cli("gang", "what-if", QUEUE, *asked, "--places", "0").stdout
    assert ahead.startswith("no rack has room for all 3; ")
    assert "Places with most room" not in ahead
    assert "  rack 1: room for 2" not in ahead
    found = shown("gang", "what-if", QUEUE, "--member", "work:2")
    assert (found["code"], found["size"]) == ("ready", 2)
    assert len(producer.list_gangs()) == 1
    cli("gang", "cancel", gang_id, "--yes")
    two = cli("gang", "spawn", QUEUE, "--member", "work:2").stdout.strip()
    reap(producer)
    rows = [line.split() for line in cli("gang", "show", two).stdout.splitlines()[-2:]]
    assert [(row[0], *row[2:]) for row in rows] == [("0", "reserved", "n1"), ("1", "reserved", "n1")]


def test_from_spawned_to_stopped(producer: Client, cli: Cli, shown: Shown) -> None:
    own = str(uuid4())
    line = ("everywhere", "spawn", QUEUE, "agent", "--id", own)
    producer.register_node(uuid4(), NodeSpec(name="gpu-1", instance_id="1"))
    spawned = shown(*line)
    assert (spawned["everywhere_id"], spawned["created"], spawned["nodes"]) == (own, True, 1)
    again = cli(*line)
    assert again.stdout.strip() == own
    assert "nodes that suit it now: 1; it was there already" in again.stderr
    reap(producer)
    assert "gpu-1" in cli("everywhere", "show", own).stdout
    cli("everywhere", "stop", own, stdin="n\n", code=1)
    assert producer.get_everywhere(own).state == "active"
    asked = cli("everywhere", "stop", own, "--running", "stop", stdin="y\n")
    assert "stop task agent, which runs on 0 nodes?" in asked.stderr
    reap(producer)
    assert shown("everywhere", "stop", own, "--yes") == {"everywhere_id": own, "state": "stopped"}
    cli("everywhere", "show", str(uuid4()), code=3)


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
GPU_TASK = {"resources": {"gpu": 1}}


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the tasks, in the current folder."""
    path = tmp_path / "tasks_to_sync.py"
    path.write_text(TASKS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "tasks_to_sync", raising=False)
    return path


def test_sync_makes_them_those_of_the_app(cli: Cli, shown: Shown, app: Path, dsn: str) -> None:
    with Client(dsn, pool_size=1) as client:
        client.set_task("mail", {"priority": 4, "labels": {"a": "b"}})
        client.set_task("plain", {"priority": 1})
        client.set_task("other", {"priority": 9})
        before = client.list_tasks()
        changes = [
            {"task": "train", "option": "max_attempts", "now": None, "then": 1},
            {"task": "train", "option": "placement", "now": None, "then": GPU_TASK},
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
            "train": {"placement": GPU_TASK, "max_attempts": 1},
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
