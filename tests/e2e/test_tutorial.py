"""The tutorial, docs/tutorial: every command as it stands there has to print what the page says.

| written | done |
|---|---|
| a block of python | the file that its first line names |
| a block of sh | run in the one shell of the reader |
| a block of console | each command is run and has to print what follows it |

Once with the programs of this environment, in a folder, home and database server of its own, and
once (`slow`) from a bare virtual environment, where the page's first block installs the wheel.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from tests.e2e.conftest import Shell
from tests.e2e.test_on_call import ID
from tests.e2e.test_on_call import masked as masked_on_call
from tests.e2e.worker_support import BOUND_SECONDS
from tests.shell_lines import session, tokens

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "tutorial" / "index.md"
# Commands that change nothing: asked again until what the page tells has happened.
READS = ("hwqueue lease list", "hwqueue lease explain", "hwqueue pending", "hwqueue node what-if")
SPAN = re.compile(r"\b\d+(\.\d+)? s\b")
PYTEST_SPAN = re.compile(r"\b\d+\.\d+s\b")

pytestmark = [pytest.mark.embedded, pytest.mark.skipif(not PAGE.exists(), reason="no checkout")]


@dataclass
class Reader:
    """Somebody who does what the page says, and what they have seen differ."""

    shell: Shell
    installs: bool
    ids: dict[str, str] = field(default_factory=dict)
    differs: list[str] = field(default_factory=list)
    compared: int = 0

    def read(self, page: Path) -> None:
        """Do every block of a page, in order."""
        for token in tokens(page):
            if token.type != "fence":
                continue
            if token.info == "python":
                self.write(token.content)
            elif token.info == "sh":
                if self.installs or "pip install" not in token.content:
                    self.shell.run(self.typed(token.content))
            else:
                assert token.info == "console", f"nobody knows what to do with {token.info}"
                for command, expected in session(token.content):
                    self.compare(command, "\n".join(expected))

    def write(self, text: str) -> None:
        """The file that the first line of a block names, where the shell is."""
        name = text.partition("\n")[0].removeprefix("# ")
        folder = Path(self.shell.run("pwd").strip())
        (folder / name).write_text(text, encoding="utf-8")

    def typed(self, text: str) -> str:
        """A command with the ids of this run."""
        for there, here in self.ids.items():
            text = text.replace(there, here)
        return text

    def compare(self, command: str, expected: str) -> None:
        """Run a command that prints what the page says; differences are told together."""
        printed = self.run(command)
        until = time.monotonic() + BOUND_SECONDS
        while (
            masked(printed) != masked(expected)
            and command.startswith(READS)
            and not self.differs  # what follows may differ for the same reason
            and time.monotonic() < until
        ):
            printed = self.run(command)
        if masked(printed) != masked(expected):
            self.differs.append(f"$ {command}\n{printed}")
        for there, here in zip(ID.findall(expected), ID.findall(printed), strict=False):
            known = self.ids.setdefault(there, here)
            assert known == here, f"{command}: {there} is another lease"
        self.compared += 1

    def run(self, command: str) -> str:
        return self.shell.run(f"{{ {self.typed(command)}\n}} 2>&1").rstrip("\n")


def masked(text: str) -> str:
    return SPAN.sub("SPAN", masked_on_call(PYTEST_SPAN.sub("SPAN", text)))


@pytest.fixture
def reader(open_folder: Path, tmp_path: Path) -> Iterator[Callable[..., Reader]]:
    """Make a reader with a home, a shell and a database server of their own."""
    shells = []

    def make(*, installs: bool, start: Path, programs: str) -> Reader:
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
        }
        shells.append(Shell(start, env))
        return Reader(shells[-1], installs)

    yield make
    for shell in shells:
        shell.end()
    pid_file = open_folder / "server" / "data" / "postmaster.pid"
    if pid_file.exists():
        pid = int(pid_file.read_text(encoding="utf-8").split("\n")[0])
        if psutil.pid_exists(pid) and psutil.Process(pid).name() == "postgres":
            os.kill(pid, signal.SIGINT)
            psutil.wait_procs([psutil.Process(pid)], timeout=BOUND_SECONDS)


def finish(reader: Reader) -> None:
    assert reader.compared >= 10
    assert not reader.differs, "the page says something else than:\n\n" + "\n\n".join(reader.differs)


def test_the_tutorial(reader: Callable[..., Reader], tmp_path: Path) -> None:
    programs = str(Path(sys.executable).parent)
    someone = reader(installs=False, start=tmp_path, programs=programs)
    someone.read(PAGE)
    finish(someone)


@pytest.mark.slow
def test_the_tutorial_from_a_bare_environment(reader: Callable[..., Reader], tmp_path: Path) -> None:
    """In a clean clone of what is committed; needs PyPI."""
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", "--depth", "1", f"file://{ROOT}", str(clone)], check=True)
    system = str(Path(sys.base_prefix) / "bin")
    someone = reader(installs=True, start=clone, programs=system)
    someone.read(PAGE)
    finish(someone)
