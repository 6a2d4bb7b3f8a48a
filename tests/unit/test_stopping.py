"""Signals before and after something takes them over, and imports that end the program."""

from __future__ import annotations

import ast
import asyncio
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import hwqueue.cli
from hwqueue.cli.worker import load_app
from hwqueue.errors import ConfigError
from hwqueue.stopping import SIGNALS, Stopped, calling, handled_by, importing, told_first, until_told

# An app that swallows what is raised while it is imported.
SWALLOWING = """
import pathlib, time
pathlib.Path("imports").touch()
try:
    time.sleep(600)
except BaseException:
    pass
import hwqueue
app = hwqueue.App()
"""
LINE = [sys.executable, "-m", "hwqueue", "--dsn", "host=127.0.0.1 port=1", "worker", "run"]


@pytest.mark.parametrize(
    ("number", "alone"),
    [(signal.SIGTERM, ["unshare", "--pid", "--fork"]), (signal.SIGINT, [])],
    ids=["first process of a container", "Ctrl-C"],
)
def test_a_signal_during_the_import_ends_the_worker(
    tmp_path: Path, number: signal.Signals, alone: list[str]
) -> None:
    if alone and (os.geteuid() != 0 or shutil.which("unshare") is None):
        pytest.skip("only root on Linux makes a namespace of processes")
    (tmp_path / "tasks.py").write_text(SWALLOWING)
    process = subprocess.Popen([*alone, *LINE, "--app=tasks:app"], cwd=tmp_path)
    with process:
        try:
            while not (tmp_path / "imports").exists():
                assert process.poll() is None
            [*_, worker] = [psutil.Process(process.pid), *psutil.Process(process.pid).children()]
            worker.send_signal(number)
            assert process.wait(90) == 0
        finally:
            process.kill()


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_what_has_not_taken_it_over(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with pytest.raises(Stopped) as ended, until_told():
        os.kill(os.getpid(), number)
    assert ended.value.code == 0
    assert signal.getsignal(number) is before


def test_each_command_that_runs_on_is_told_from_its_beginning() -> None:
    """Even if it is told before it has connected, or imported an app."""
    told = {
        f"{file.stem} {each.name}"
        for file in Path(hwqueue.cli.__file__).parent.rglob("*.py")
        for each in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(each, ast.FunctionDef) and "until_told()" in map(ast.unparse, each.decorator_list)
    }
    assert told == {
        *("command top", "metrics serve", "planner planner"),
        *("serve serve", "webhook run", "worker run"),
    }


@pytest.mark.parametrize("number", SIGNALS)
def test_what_is_told_first_keeps_the_signal_from_nobody(number: signal.Signals) -> None:
    heard: list[object] = []
    with handled_by(lambda given, _: heard.append(given)), told_first(lambda: heard.append("told")):
        os.kill(os.getpid(), number)
    assert heard == ["told", number]


async def test_signals_are_one_until_the_first_is_heard() -> None:
    asked: list[int] = []
    with calling(lambda: asked.append(1)):
        for heard in (1, 2):
            for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
                os.kill(os.getpid(), number)
            while len(asked) < heard:
                await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert len(asked) == heard


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("sys.exit(0)", r"sys\.exit\(0\)"),
        ("sys.exit()", r"sys\.exit\(\)"),
        ("sys.exit('no licence')", r"sys\.exit\('no licence'\)"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    ],
)
def test_an_app_that_ends_the_program_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, said: str
) -> None:
    (tmp_path / "leaving_app.py").write_text(f"import sys\n{line}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(ConfigError, match=f"leaving_app:app: .*: {said}\n"):
        load_app("leaving_app:app")


def test_what_else_an_import_raises_is_raised_as_it_is() -> None:
    with pytest.raises(ZeroDivisionError), importing("an app"):
        raise ZeroDivisionError
