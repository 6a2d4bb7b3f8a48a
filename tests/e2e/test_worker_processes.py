"""`hwqueue worker run --processes` and `--watch`, as a user runs them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from hwqueue.client import Client
from hwqueue.types import LeaseState, Node
from tests.e2e.programs import read_until, running
from tests.e2e.worker_support import QUEUE, is_in, wait_until

TASKS = """
import asyncio
import os
from hwqueue.app import App
app = App()

@app.task("who")
def who(params):
    return "{answer}"

@app.task("wait")
async def wait(params):
    while not os.path.exists("go"):
        await asyncio.sleep(0.01)
"""


@contextmanager
def hwqueue_worker(dsn: str, folder: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    """`hwqueue worker run` in a folder with tasks; its workers end with it, as their pipe does."""
    (folder / "tasks.py").write_text(TASKS.replace("{answer}", "first"))
    words = ("worker", "run", "--app", "tasks:app", "--queue", QUEUE, *options)
    with running(dsn, *words, cwd=folder) as process:
        yield process


def nodes(producer: Client) -> dict[str, Node]:
    return {node.name: node for node in producer.list_nodes()}


def test_processes_divide_the_machine_and_stop_together(producer: Client, dsn: str, tmp_path: Path) -> None:
    capacity = '{"cpu_milli": 5000, "licences": 1}'
    options = ("--processes=2", "--gpu=A100:80GiBx3", f"--capacity={capacity}")
    with hwqueue_worker(dsn, tmp_path, *options) as process:
        wait_until(lambda: len(nodes(producer)) == 2)
        host = socket.gethostname()
        first, second = (nodes(producer)[f"{host}-{index}"] for index in (0, 1))
        assert (first.capacity["cpu_milli"], second.capacity["cpu_milli"]) == (2500, 2500)
        assert (first.capacity["licences"], second.capacity["licences"]) == (1, 0)
        assert (len(first.gpus), len(second.gpus)) == (2, 1)
        lease_id = producer.spawn_lease(QUEUE, "who", {}).lease_id
        wait_until(is_in(producer, lease_id, LeaseState.COMPLETED))
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert nodes(producer) == {}


def test_a_process_that_is_killed_comes_back(producer: Client, dsn: str, tmp_path: Path) -> None:
    """And one Ctrl-C, of which its group and the supervisor hear, is a graceful stop."""
    with hwqueue_worker(dsn, tmp_path, "--processes=2", "--name=box-%i") as process:
        pid = int(read_until(process, "process 0 runs as pid ")[-1].split()[-1])
        wait_until(lambda: len(nodes(producer)) == 2)
        assert dsn not in Path(f"/proc/{pid}/cmdline").read_text()  # everybody may read that
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: nodes(producer)["box-0"].node_epoch == 2)
        assert nodes(producer)["box-1"].node_epoch == 1
        lease_id = producer.spawn_lease(QUEUE, "wait", {}).lease_id
        wait_until(is_in(producer, lease_id, LeaseState.CLAIMED))
        workers = psutil.Process(process.pid).children()
        process.send_signal(signal.SIGINT)
        for _ in workers:
            read_until(process, "stopping: ")
        for worker in workers:
            worker.send_signal(signal.SIGINT)
        (tmp_path / "go").touch()
        assert "stopping now" not in process.communicate(timeout=30)[1]
        assert process.returncode == 0
    assert producer.get_lease(lease_id).state is LeaseState.COMPLETED


def test_workers_stop_when_their_supervisor_is_gone(producer: Client, dsn: str, tmp_path: Path) -> None:
    with hwqueue_worker(dsn, tmp_path, "--processes=2") as process:
        wait_until(lambda: len(nodes(producer)) == 2)
        process.kill()
        wait_until(lambda: nodes(producer) == {})


def test_changed_tasks_are_run(producer: Client, dsn: str, tmp_path: Path) -> None:
    def answer() -> object:
        lease_id = producer.spawn_lease(QUEUE, "who", {}).lease_id
        wait_until(is_in(producer, lease_id, LeaseState.COMPLETED))
        return producer.get_lease(lease_id).result

    with hwqueue_worker(dsn, tmp_path, "--watch", "--name=box") as process:
        assert answer() == "first"
        (tmp_path / "tasks.py").write_text(TASKS.replace("{answer}", "second"))
        wait_until(lambda: nodes(producer).get("box") is None or nodes(producer)["box"].node_epoch > 1)
        assert answer() == "second"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
