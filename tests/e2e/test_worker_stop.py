"""Workers as processes: stopped by signals, killed, superseded; `--processes` and `--watch`."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psutil
import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from hwqueue.client import Client
from hwqueue.testing import Clock
from hwqueue.types import Lease, LeaseState, Node, QueuePolicy
from hwqueue.worker.signals import SUPERSEDED
from tests.e2e.programs import read_until, running
from tests.e2e.worker_support import AT_ONCE, QUEUE, is_in, wait_until, worker_process

KINDS = ["wait-async", "wait-sync", "wait-process"]


@pytest.fixture
def policy() -> QueuePolicy:
    return QueuePolicy(retry=AT_ONCE)


def spawn(producer: Client, task: str, folder: Path) -> UUID:
    return producer.spawn_lease(QUEUE, task, {"folder": str(folder)}).lease_id


def is_released(lease: Lease) -> bool:
    """Handed back without using up an attempt."""
    outcomes = [attempt.outcome for attempt in lease.attempts]
    return (lease.state, lease.attempt, outcomes) == (LeaseState.PENDING, 0, ["released"])


@pytest.mark.usefixtures("way")
def test_sigterm_lets_running_handlers_finish_and_claims_no_more(
    producer: Client, dsn: str, tmp_path: Path
) -> None:
    running = [spawn(producer, task, tmp_path) for task in KINDS[:2]]
    with worker_process(dsn, concurrency=4) as process:
        for lease_id in running:
            wait_until(is_in(producer, lease_id, LeaseState.CLAIMED))
        wait_until((tmp_path / "started").exists)
        process.send_signal(signal.SIGTERM)
        read_until(process, "stopping")
        late = spawn(producer, "wait-async", tmp_path)
        (tmp_path / "go").touch()
        assert process.wait(30) == 0
    for lease_id in running:
        assert producer.get_lease(lease_id).result == "went"
    assert producer.get_lease(late).state is LeaseState.PENDING


@pytest.mark.parametrize("task", [*KINDS, "stuck"])
def test_what_still_runs_at_the_deadline_is_cancelled_and_handed_back(
    producer: Client, dsn: str, tmp_path: Path, task: str
) -> None:
    """A thread that cannot be stopped does not hold up the worker."""
    lease_id = spawn(producer, task, tmp_path)
    grace: Any = {"cancel_grace": 0.1} if task == "stuck" else {}
    with worker_process(dsn, shutdown_timeout=0.2, **grace) as process:
        wait_until((tmp_path / "started").exists)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
    assert (tmp_path / "cancelled").exists() == (task != "stuck")
    assert is_released(producer.get_lease(lease_id))


@pytest.mark.parametrize("task", [*KINDS, "stuck"])
def test_a_second_signal_stops_now(producer: Client, dsn: str, tmp_path: Path, task: str) -> None:
    lease_id = spawn(producer, task, tmp_path)
    with worker_process(dsn, shutdown_timeout=600, cancel_grace=600) as process:
        wait_until((tmp_path / "started").exists)
        process.send_signal(signal.SIGTERM)
        read_until(process, "stopping")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 1
    assert is_released(producer.get_lease(lease_id))


@pytest.mark.usefixtures("way")
def test_leases_of_a_killed_worker_come_back_after_the_claim_timeout(
    producer: Client, dsn: str, clock: Clock, tmp_path: Path
) -> None:
    lease_ids = [spawn(producer, task, tmp_path) for task in KINDS]
    with worker_process(dsn) as process:
        for lease_id in lease_ids:
            wait_until(is_in(producer, lease_id, LeaseState.CLAIMED))
        wait_until((tmp_path / "started").exists)
        children = psutil.Process(process.pid).children()
        process.kill()
        process.wait()
    psutil.wait_procs(children, timeout=30)
    assert not any(child.is_running() for child in children)

    clock.advance(timedelta(seconds=20))
    assert producer.reap().expired == 0
    clock.advance(timedelta(seconds=21))
    assert producer.reap().expired == len(lease_ids)

    (tmp_path / "go").touch()
    with worker_process(dsn, name="node-2"):
        for lease_id in lease_ids:
            wait_until(is_in(producer, lease_id, LeaseState.COMPLETED))
    assert [producer.get_lease(lease_id).attempt for lease_id in lease_ids] == [2, 2, 2]


def test_other_workers_reap_even_when_they_do_not_claim(
    producer: Client, dsn: str, conn: psycopg.Connection, clock: Clock, tmp_path: Path
) -> None:
    # Or else a claim hint would have the idle worker ask again, and the claim would reap.
    producer.create_queue("empty", policy=QueuePolicy(poll_interval=timedelta(hours=1)))
    idle = "select 1 from hwqueue.queue_signal where waiting_since is not null"
    with worker_process(dsn, name="node-2", queues=["empty"], poll_interval=3600, reap_interval=0.1):
        wait_until(lambda: conn.execute(idle).fetchone() is not None)
        lease_id = spawn(producer, "wait-async", tmp_path)
        with worker_process(dsn) as process:
            wait_until((tmp_path / "started").exists)
            process.kill()
        clock.advance(timedelta(minutes=2))
        wait_until(is_in(producer, lease_id, LeaseState.PENDING))
    assert [attempt.outcome for attempt in producer.get_lease(lease_id).attempts] == ["expired"]


@pytest.mark.parametrize(("leaves", "left"), [(True, 0), (False, 1)])
@pytest.mark.usefixtures("way")
def test_a_node_leaves_the_fleet_with_its_worker(
    producer: Client, dsn: str, *, leaves: bool, left: int
) -> None:
    with worker_process(dsn, deregister_on_stop=leaves) as process:
        wait_until(lambda: len(producer.list_nodes()) == 1)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert len(producer.list_nodes()) == left


def test_what_an_operator_set_keeps_a_node_whose_worker_stops(producer: Client, dsn: str) -> None:
    with worker_process(dsn) as process:
        wait_until(lambda: len(producer.list_nodes()) == 1)
        producer.cordon_node(producer.list_nodes()[0].node_id)
        process.send_signal(signal.SIGTERM)
        assert "stays registered" in process.communicate(timeout=30)[1]
        assert process.returncode == 0
    [node] = producer.list_nodes()
    assert node.cordoned


@pytest.mark.usefixtures("way")
def test_a_worker_of_the_same_name_supersedes_the_first(producer: Client, dsn: str, tmp_path: Path) -> None:
    lease_id = spawn(producer, "wait-async", tmp_path)
    with worker_process(dsn) as first:
        wait_until((tmp_path / "started").exists)
        with worker_process(dsn) as second:
            assert "another worker has registered as node 'node-1'" in first.communicate(timeout=30)[1]
            assert first.returncode == SUPERSEDED
            (tmp_path / "go").touch()
            wait_until(is_in(producer, lease_id, LeaseState.COMPLETED))
            second.send_signal(signal.SIGTERM)
            assert second.wait(30) == 0
    lease = producer.get_lease(lease_id)
    assert [attempt.outcome for attempt in lease.attempts] == ["superseded"]
    assert lease.attempt == 2


def test_a_worker_whose_node_is_handed_over_stops(
    producer: Client, conn: psycopg.Connection, dsn: str, tmp_path: Path
) -> None:
    """And one that may not act for the node at all says so at once."""
    login = f"hwqueue_test_{uuid4().hex[:12]}"
    conn.execute(
        sql.SQL("create role {} login password 'x' in role hwqueue_worker").format(sql.Identifier(login))
    )
    try:
        spawn(producer, "wait-async", tmp_path)
        with worker_process(make_conninfo(dsn, user=login, password="x")) as process:
            wait_until((tmp_path / "started").exists)
            [node] = producer.list_nodes()
            assert node.login == login
            producer.hand_over_node(node.node_id, "hwqueue_admin")
            said = process.communicate(timeout=30)[1]
            assert process.returncode == SUPERSEDED
            assert 'belongs to login "hwqueue_admin"' in said
            assert "hand_over_node" in said
        with worker_process(make_conninfo(dsn, user=login, password="x")) as process:
            assert 'belongs to login "hwqueue_admin"' in process.communicate(timeout=30)[1]
            assert process.returncode == 1
    finally:
        conn.execute(sql.SQL("drop role {}").format(sql.Identifier(login)))


def test_a_worker_that_waits_for_the_database_can_be_stopped() -> None:
    with worker_process("host=127.0.0.1 port=1 dbname=none") as process:
        read_until(process, "connect: trying again")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


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
