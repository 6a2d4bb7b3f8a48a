"""Several processes of one command: orders, restarts, exit codes. They are small scripts here."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import hwqueue.worker.supervise as supervise_module
from hwqueue.worker.signals import SUPERSEDED
from hwqueue.worker.supervise import Supervisor

# Appends to a file what it hears; a graceful order ends it, and so does an end of the pipe.
LISTENER = """
import sys
heard = open(sys.argv[1], "a")
heard.write("start ")
heard.flush()
orders = iter(lambda: sys.stdin.buffer.raw.read(1), b"")
for order in orders:
    heard.write(order.decode() + " ")
    heard.flush()
    if order == b"n" or sys.argv[2] == "polite":
        sys.exit(order == b"n")
"""
BOUND_SECONDS = 90.0


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervise_module, "_FIRST_WAIT_SECONDS", 0.01)


def listeners(folder: Path, kind: str) -> Callable[[int], list[str]]:
    return lambda index: [sys.executable, "-c", LISTENER, str(folder / str(index)), kind]


async def until(folder: Path, *heard: str) -> None:
    """Wait until the processes have heard this, each its own."""

    def said(index: int) -> str:
        path = folder / str(index)
        return path.read_text() if path.exists() else ""

    async with asyncio.timeout(BOUND_SECONDS):
        while [said(index).split() for index in range(len(heard))] != [h.split() for h in heard]:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("manners", "code", "told"), [("polite", 0, "start d"), ("stubborn", 1, "start d n")]
)
async def test_a_stop_reaches_all_and_a_second_one_is_now(
    tmp_path: Path, manners: str, code: int, told: str
) -> None:
    supervisor = Supervisor(listeners(tmp_path, manners), 2)
    running = asyncio.create_task(supervisor.run())
    await until(tmp_path, "start", "start")
    supervisor.stop()
    await until(tmp_path, "start d", "start d")
    if code:
        supervisor.stop()
    assert await running == code
    await until(tmp_path, told, told)


async def test_one_that_dies_is_started_again(tmp_path: Path) -> None:
    """Whatever it ended with that trying again may change."""
    first = tmp_path / "died"
    script = f"import os, pathlib; p = pathlib.Path({str(first)!r}); n = p.exists(); p.touch(); "

    def command(index: int) -> list[str]:
        listener = listeners(tmp_path, "polite")(index)
        if index == 0 and not first.exists():
            return [sys.executable, "-c", script + "os.kill(os.getpid(), 9)"]
        return listener

    supervisor = Supervisor(command, 2)
    running = asyncio.create_task(supervisor.run())
    await until(tmp_path, "start", "start")
    assert first.exists()
    supervisor.stop()
    assert await running == 0


@pytest.mark.parametrize("code", [2, 4, SUPERSEDED])
async def test_what_would_end_so_again_ends_all(tmp_path: Path, code: int) -> None:
    def command(index: int) -> list[str]:
        if index == 0:
            return [sys.executable, "-c", f"raise SystemExit({code})"]
        return listeners(tmp_path, "polite")(index)

    async with asyncio.timeout(BOUND_SECONDS):
        assert await Supervisor(command, 2).run() == code


async def test_a_change_starts_all_again(tmp_path: Path) -> None:
    """One that had ended by itself waits for it."""
    watched = tmp_path / "watched"
    watched.mkdir()
    (watched / "tasks.py").write_text("raise SystemExit(1)")

    def command(index: int) -> list[str]:
        if index == 1:
            return [sys.executable, str(watched / "tasks.py")]
        return listeners(tmp_path, "stubborn")(index)

    supervisor = Supervisor(command, 2, [watched])
    running = asyncio.create_task(supervisor.run())
    await until(tmp_path, "start")
    copy = LISTENER.replace("sys.argv[1]", repr(str(tmp_path / "1")))
    (watched / "notes.txt").write_text("not Python")
    async with asyncio.timeout(BOUND_SECONDS):
        while not (tmp_path / "1").exists():  # until the watcher is there, it may miss a change
            (watched / "tasks.py").write_text(copy.replace("sys.argv[2]", "'polite'"))
            await asyncio.sleep(0.5)
    assert "start n start" in (tmp_path / "0").read_text()
    supervisor.stop()
    supervisor.stop()
    assert await running == 1
