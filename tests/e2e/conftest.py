"""What the tests of whole programs share: clients, the command line, a shell, and event loops."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import psutil
import pytest
import uvloop
from typer.testing import CliRunner, Result

from hwqueue.cli.main import app
from hwqueue.client import AsyncClient, Client
from hwqueue.serve import create_app
from hwqueue.server import ServerSettings
from hwqueue.types import QueuePolicy
from tests.e2e.worker_support import QUEUE, WAY
from tests.server.conftest import live

Cli = Callable[..., Result]
Shown = Callable[..., Any]


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """A worker runs in any event loop: in uvloop's here, and on a server that is named in asyncio's."""
    if item.path.name.startswith("test_worker_") and not os.environ.get("HWQUEUE_TEST_DSN"):
        return {"uvloop": uvloop.new_event_loop}
    return {"asyncio": asyncio.new_event_loop}


@pytest.fixture
def policy() -> QueuePolicy | None:
    """What the queue of the workers is made with; a file whose tests need another one says so."""
    return None


@pytest.fixture
async def client(dsn: str, policy: QueuePolicy | None) -> AsyncIterator[AsyncClient]:
    """A client, with the queue of the workers."""
    async with AsyncClient(dsn) as connected:
        await connected.create_queue(QUEUE, policy=policy)
        yield connected


@pytest.fixture
def producer(dsn: str, policy: QueuePolicy | None) -> Iterator[Client]:
    """The same without an event loop."""
    with Client(dsn) as connected:
        connected.create_queue(QUEUE, policy=policy)
        yield connected


@pytest.fixture(params=["login", "http"])
def way(request: pytest.FixtureRequest, dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The workers of the test have a login of the database; then a token of an HTTP server alone."""
    if request.param == "login":
        yield
        return
    token = tmp_path_factory.mktemp("token") / "token"
    token.write_text("of-the-workers")
    with Client(dsn, pool_size=1) as client:
        names = [f"{letter}*" for letter in ascii_lowercase]
        client.create_token("workers", sha256(b"of-the-workers").digest(), "worker", nodes=names)
    with live(create_app(ServerSettings(dsn=dsn, auth="tokens", rate_limit=None))) as url:
        WAY.over_http = {"url": url, "token_file": str(token)}
        try:
            yield
        finally:
            WAY.over_http = {}


@pytest.fixture
def cli(dsn: str) -> Cli:
    """Run `hwqueue ARGS --dsn ...`; `code` is what it must exit with."""

    def run(*args: str, code: int = 0, stdin: str | None = None) -> Result:
        result = CliRunner().invoke(app, ["--dsn", dsn, *args], input=stdin)
        assert result.exit_code == code, (result.output, result.exception)
        return result

    return run


@pytest.fixture
def shown(cli: Cli) -> Shown:
    """Run a command with --json and return what it printed."""

    def run(*args: str, code: int = 0, stdin: str | None = None) -> Any:
        return json.loads(cli("--json", *args, code=code, stdin=stdin).stdout)

    return run


class Shell:
    """Somebody's shell, with its jobs; it stops at the first command that fails."""

    def __init__(self, folder: Path, env: dict[str, str]) -> None:
        self._errors = (folder / "shell.log").open("w+")
        self.process = subprocess.Popen(
            ["bash", "--norc", "-eo", "pipefail"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
            text=True, cwd=folder, env=env, start_new_session=True,
        )  # fmt: skip

    def run(self, script: str) -> str:
        """Run lines; what they print."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{script}\necho; echo --end--\n")
        self.process.stdin.flush()
        printed = ""
        for line in self.process.stdout:
            if line == "--end--\n":
                return printed.removesuffix("\n")
            printed += line
        self._errors.seek(0)
        raise AssertionError(f"{script}\n{printed}{self._errors.read()}")

    def jobs(self) -> list[list[str]]:
        """What runs in the background, by its words."""
        found = []
        for child in psutil.Process(self.process.pid).children():
            with suppress(psutil.NoSuchProcess):
                found.append(child.cmdline())
        return found

    def workers(self) -> list[str]:
        """The names of the nodes whose workers live."""
        return [words[words.index("--name") + 1] for words in self.jobs() if "--name" in words]

    def end(self) -> None:
        """End it and all its jobs."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()
        self._errors.close()


@pytest.fixture
def shell(dsn: str, tmp_path: Path) -> Iterator[Shell]:
    """Of somebody on whose machine hwqueue is installed."""
    programs = Path(sys.executable).parent
    env = os.environ | {"HWQUEUE_DSN": dsn, "PATH": f"{programs}:{os.environ['PATH']}"}
    made = Shell(tmp_path, env)
    yield made
    made.end()
