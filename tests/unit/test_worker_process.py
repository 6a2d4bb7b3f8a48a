"""Handlers in a child process: what it sees, what comes back, how it is stopped."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from uuid import uuid4

import psutil
import pytest

from hwqueue.app import App
from hwqueue.types import AssignedGpu, Assignment, Claim
from hwqueue.worker import outcome, process
from hwqueue.worker.outcome import Outcome
from hwqueue.worker.process import environment_for, job_for, run_in_process
from tests.unit.claims import claim
from tests.unit.process_handlers import app

pytestmark = [pytest.mark.embedded, pytest.mark.thorough]

GRACE = timedelta(minutes=2)


async def run(
    granted: Claim, *, gpu_names: tuple[str, ...] = (), grace: timedelta = GRACE, of: App = app
) -> Outcome:
    job = job_for(of.tasks[granted.task_name], granted, of.child_import)
    environment = environment_for(granted, gpu_names)
    return await run_in_process(job, environment, grace, asyncio.Event())


async def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_handler_gets_its_params_and_context(monkeypatch: pytest.MonkeyPatch) -> None:
    params = {"a": [1, "ü"], "large": "x" * 3_000_000}
    ended = await run(claim("see", params))
    assert (ended.kind, ended.result["params"], ended.result["attempt"]) == ("complete", params, 2)
    assert ended.result["pid"] != os.getpid()
    assert ended.result["stdin"] == ""
    monkeypatch.setattr(process, "_PARSED_AT_ONCE_BYTES", 100)
    assert (await run(claim("see", "x" * 1000))).result["params"] == "x" * 1000
    granted = claim("see-async")
    assert (await run(granted)).result == str(granted.lease_id)


async def test_gpus_and_cpus_are_set_before_the_handlers_module_is_imported() -> None:
    cpu = min(os.sched_getaffinity(0))
    gpus = tuple(AssignedGpu(index=index, resource_id=uuid4()) for index in (2, 0))
    given = Assignment(gpus=gpus, cpus=(cpu,))
    ended = await run(claim("see", None, given), gpu_names=("GPU-a", "GPU-b", "GPU-c"))
    assert (ended.result["visible"], ended.result["cpus"]) == ("GPU-c,GPU-a", [cpu])


def test_without_gpus_of_its_own_a_lease_sees_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    assert environment_for(claim("see"), ("GPU-a",))["CUDA_VISIBLE_DEVICES"] == ""
    assert environment_for(claim("see"), ())["CUDA_VISIBLE_DEVICES"] == "5"


def test_the_workers_credentials_are_not_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden = ("PGPASSWORD", "PGPASSFILE", "PGSERVICEFILE", "PGHOST", "HWQUEUE_DSN", "HWQUEUE_LISTEN")
    for name in (*hidden, "HOME_OF_THE_TEST"):
        monkeypatch.setenv(name, "secret")
    seen = environment_for(claim("see"), ())
    assert [name for name in hidden if name in seen] == []
    assert seen["HOME_OF_THE_TEST"] == "secret"
    assert "PATH" in seen
    passed = environment_for(claim("see"), (), ("HWQUEUE_DSN",))
    assert [name for name in hidden if name in passed] == ["HWQUEUE_DSN"]


async def test_a_report_in_many_pieces_is_put_together() -> None:
    told: list[Any] = []
    child = process._Child()
    heard = process._hear(Mock(), child, process.Told(progress=told.append))
    hearing = asyncio.ensure_future(heard)
    text = b"x" * 100_000
    before = b"P" + (15).to_bytes(8, "big") + b'{"fraction": 1}'
    sent = before + b"O" + len(text).to_bytes(8, "big") + text + b"what a copy wrote after it"
    for start in range(0, len(sent), 7):
        assert not hearing.done() or start >= len(before) + 9 + len(text)
        child.pipe_data_received(1, sent[start : start + 7])
        await asyncio.sleep(0)
    assert await hearing == text
    assert told == [{"fraction": 1}]


async def test_a_report_that_is_too_large_kills_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_MOST_REPORTED_BYTES", 100_000)
    ended = await run(claim("see", "x" * 3_000_000))
    assert ended.error is not None
    assert (ended.error["type"], ended.retry) == ("ResultRefused", False)
    assert "more than 100000" in ended.error["message"]


@pytest.mark.parametrize(
    ("task", "kind", "message", "retry"),
    [
        ("reject", "hwqueue.app.Reject", "never", False),
        ("extend", "hwqueue.errors.ConfigError", "not available in a handler", True),
        ("die", "ProcessDied", "killed by signal 9 (Killed)", True),
        ("leave", "ProcessDied", "left with exit code 3", True),
        ("exit", "SystemExit", "out of work", True),
    ],
)
async def test_failures_say_what_happened(task: str, kind: str, message: str, retry: bool) -> None:
    ended = await run(claim(task))
    assert ended.error is not None
    assert ended.error["type"] == kind
    assert message in ended.error["message"]
    assert ended.retry is retry


def undecorated(params: Any) -> None: ...


async def test_a_handler_that_the_child_cannot_find_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = App()
    other.task("elsewhere", process=True)(undecorated)
    ended = await run(claim("elsewhere"), of=other)
    assert ended.error is not None
    assert "has no task 'undecorated'" in ended.error["message"]
    # no name that an import statement could have; a worker takes it
    (tmp_path / "my-app.py").write_text("import hwqueue\napp = hwqueue.App()\n")
    monkeypatch.syspath_prepend(tmp_path)
    other.child_import = "my-app:app"
    ended = await run(claim("elsewhere"), of=other)
    assert "my-app:app has no task 'elsewhere'" in str(ended.error)


@pytest.fixture
def marks(tmp_path: Path) -> dict[str, str]:
    return {"started": str(tmp_path / "started"), "stopped": str(tmp_path / "stopped")}


async def started(granted: Claim, marks: dict[str, str], grace: timedelta) -> asyncio.Task[Outcome]:
    running = asyncio.create_task(run(granted, grace=grace))
    await until(lambda: Path(marks["started"]).exists())
    return running


@pytest.mark.parametrize("task", ["wait", "wait-async"])
async def test_cancelling_reaches_the_handler(task: str, marks: dict[str, str]) -> None:
    running = await started(claim(task, marks), marks, GRACE)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert Path(marks["stopped"]).exists()


async def test_a_signal_that_another_thread_got_ends_a_call_that_waits(marks: dict[str, str]) -> None:
    async with asyncio.timeout(30):
        ended = await run(claim("wait-in-a-call", marks))
    assert ended == outcome.CANCELLED_ITSELF
    assert Path(marks["stopped"]).exists()


async def test_a_handler_may_finish_although_it_is_cancelled(marks: dict[str, str]) -> None:
    running = await started(claim("finish-anyway", marks), marks, GRACE)
    running.cancel()
    assert (await running).result == "saved"


async def test_a_stubborn_handler_is_killed_with_its_children(marks: dict[str, str]) -> None:
    running = await started(claim("stubborn", marks), marks, timedelta(milliseconds=100))
    await until(lambda: bool(Path(marks["started"]).read_text()))
    pids = [int(pid) for pid in Path(marks["started"]).read_text().split()]
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await until(lambda: not any(map(is_alive, pids)))


@pytest.mark.parametrize("task", ["leave-behind", "fork"])
async def test_what_a_handler_leaves_behind_is_killed(task: str, marks: dict[str, str]) -> None:
    async with asyncio.timeout(30):
        assert (await run(claim(task, marks))).kind == "complete"
    left = int(Path(marks["started"]).read_text())
    await until(lambda: not is_alive(left))


async def test_a_forked_copy_does_not_report() -> None:
    assert (await run(claim("return-twice"))).result == "the handler"


async def test_a_copy_that_has_left_the_group_holds_nobody_up(marks: dict[str, str]) -> None:
    async with asyncio.timeout(30):
        ended = await run(claim("escape", marks))
    os.kill(int(Path(marks["started"]).read_text()), signal.SIGKILL)
    assert ended.error is not None
    assert "left with exit code 3" in ended.error["message"]


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
