"""The tutorial, docs/tutorial: every command as it stands there has to print what the page says.

Once with the programs of this environment, in a folder, home and database server of its own, and
once (`slow`) from a bare virtual environment, where the page's first block installs the wheel.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.e2e.conftest import Shell
from tests.e2e.reading import Reader
from tests.e2e.worker_support import BOUND_SECONDS
from tests.shell_lines import tokens

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tutorial" / "index.md"
READS = (
    "hwqueue lease list",
    "hwqueue lease explain",
    "hwqueue pending",
    "hwqueue node what-if",
    "hwqueue limit show",
)

pytestmark = pytest.mark.embedded


def read(reader: Reader, *, installs: bool, page: Path = PAGE, compared: int = 10) -> None:
    """Do every block of the page, in order."""
    for token in tokens(page):
        if token.type == "fence" and (installs or "pip install" not in token.content):
            reader.block(token)
    assert reader.compared >= compared
    reader.finish()


@pytest.fixture
def reader(open_folder: Path, tmp_path: Path) -> Iterator[Callable[..., Reader]]:
    """Make a reader with a home, a shell and a database server of their own."""
    shells = []

    def make(start: Path, programs: Path, **more: str) -> Reader:
        env = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "HWQUEUE_"))}
        home = tmp_path / "home"
        home.mkdir()
        env |= {
            "HOME": str(home),
            "HWQUEUE_DATA_DIR": str(open_folder / "server"),
            "PATH": f"{programs}:{os.environ['PATH']}",
            "TZ": "UTC",
            # a plugin of this environment that warns of options; readers do not have it
            "PYTEST_ADDOPTS": "-p no:asyncio",
        } | more
        shells.append(Shell(start, env))
        return Reader(shells[-1], READS)

    yield make
    for shell in shells:
        shell.end()
    pid_file = open_folder / "server" / "data" / "postmaster.pid"
    if pid_file.exists():
        pid = int(pid_file.read_text(encoding="utf-8").split("\n")[0])
        if psutil.pid_exists(pid) and psutil.Process(pid).name() == "postgres":
            os.kill(pid, signal.SIGINT)
            psutil.wait_procs([psutil.Process(pid)], timeout=BOUND_SECONDS)


def test_the_tutorial(reader: Callable[..., Reader], tmp_path: Path) -> None:
    """A release names the programs of a bare environment, where its wheel is installed."""
    programs = os.environ.get("HWQUEUE_TEST_PROGRAMS") or Path(sys.executable).parent
    read(reader(tmp_path, Path(programs)), installs=False)


def test_schedules_and_limits(reader: Callable[..., Reader], tmp_path: Path, dsn: str) -> None:
    made = reader(tmp_path, Path(sys.executable).parent, HWQUEUE_DSN=dsn)
    read(made, installs=False, page=PAGE.with_name("nightly.md"), compared=15)


@pytest.mark.slow
def test_the_tutorial_from_a_bare_environment(reader: Callable[..., Reader], tmp_path: Path) -> None:
    """In a clean clone of what is committed; needs PyPI."""
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", "--depth", "1", f"file://{ROOT}", str(clone)], check=True)
    read(reader(clone, Path(sys.base_prefix) / "bin"), installs=True)
