"""Embedded servers that are stopped whatever a test does."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from hwqueue.embedded import EmbeddedServer
from tests.fix_db import THROWAWAY

MakeServer = Callable[[Path], EmbeddedServer]
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can set this up")


@pytest.fixture
def server_in(open_folder: Path) -> Iterator[MakeServer]:
    """Make a server for a data folder below `open_folder`; it is stopped at the end."""
    made = []

    def make(data_dir: Path) -> EmbeddedServer:
        made.append(EmbeddedServer(data_dir, settings=THROWAWAY))
        return made[-1]

    yield make
    for server in made:
        if (server.data_dir / "data" / "postmaster.pid").exists():
            server.stop()


@pytest.fixture
def server(open_folder: Path, server_in: MakeServer) -> EmbeddedServer:
    """One that is not set up yet."""
    return server_in(open_folder / "server")


def answers(url: str) -> bool:
    """Whether a server answers there."""
    with psycopg.connect(url) as connection:
        return connection.execute("select 1").fetchone() == (1,)


@contextmanager
def effective_user(uid: int) -> Iterator[None]:
    """Act as another user for the length of the block (root only)."""
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
