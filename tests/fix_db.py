"""A server, a migrated database of its own for each test, and a clock that tests can move.

The server is HWQUEUE_TEST_DSN (its user must be allowed to create databases and roles), else a
container where Docker runs, else the embedded server. Each pytest-xdist worker migrates one
template; a test gets a copy of it.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import psycopg
import pytest
from filelock import FileLock
from psycopg.conninfo import conninfo_to_dict

from hwqueue.embedded import EmbeddedServer
from hwqueue.schema import upgrade
from hwqueue.testing import Clock, install_clock
from hwqueue.testing.databases import THROWAWAY, fresh_database, memory_disk
from hwqueue.testing.databases import open_folder as open_folder_in

__all__ = ["THROWAWAY", "fresh_database"]  # for tests, beside the fixtures


@pytest.fixture(scope="session")
def server_dsn() -> Iterator[str]:
    """The maintenance database of the server under test."""
    if given := os.environ.get("HWQUEUE_TEST_DSN"):
        yield given
    elif _docker_runs():
        yield from _container()
    else:
        yield from _embedded()


@pytest.fixture(scope="session")
def template(server_dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name of a migrated database that nobody writes to."""
    with fresh_database(server_dsn) as dsn:
        # Roles belong to the server, not to the database: workers must not make them at once.
        with FileLock(tmp_path_factory.getbasetemp().parent / "upgrade.lock"):
            upgrade(dsn)
        yield str(conninfo_to_dict(dsn)["dbname"])


@pytest.fixture
def dsn(server_dsn: str, template: str) -> Iterator[str]:
    """A migrated database of the test's own."""
    with fresh_database(server_dsn, template) as made:
        yield made


@pytest.fixture
def empty_dsn(server_dsn: str) -> Iterator[str]:
    """An empty database of the test's own."""
    with fresh_database(server_dsn) as made:
        yield made


@pytest.fixture
def conn(dsn: str) -> Iterator[psycopg.Connection]:
    """An autocommit connection to the test's database."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can reach (as root, pytest's tmp_path is closed to a server)."""
    with temporary_folder() as made:
        yield made


@pytest.fixture
def clock(conn: psycopg.Connection) -> Clock:
    """Install the test clock in the test's database."""
    return install_clock(conn)


@pytest.fixture
def sound(conn: psycopg.Connection) -> Iterator[None]:
    """After the test all invariants hold: counts equal recounts, what belongs together agrees."""
    yield
    assert conn.execute("select * from hwqueue.verify_invariants()").fetchall() == []


@pytest.fixture
def eager_marks(dsn: str) -> None:
    """Let every claim move the low-water mark of what it claims; else one in 32 does, by chance."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "create or replace function hwqueue.should_advance_low_water(p_qty int) returns boolean"
            " language sql volatile as 'select true'"
        )
        connection.execute(  # and asks who has drawn positions; else one in eight of those does
            "create or replace function hwqueue.asks_lock_holders() returns boolean"
            " language sql volatile as 'select true'"
        )


def _docker_runs() -> bool:
    if shutil.which("docker") is None:
        return False
    return subprocess.run(["docker", "info"], capture_output=True, check=False).returncode == 0


def _container() -> Iterator[str]:
    # Imported here: it is slow to import, and pointless where Docker does not run.
    from testcontainers.postgres import PostgresContainer  # noqa: PLC0415

    with PostgresContainer("postgres:18", driver=None) as container:
        yield container.get_connection_url()


def _embedded() -> Iterator[str]:
    with temporary_folder(memory_disk()) as folder:
        server = EmbeddedServer(folder / "server", settings=THROWAWAY)
        try:
            yield server.ensure_running()
        finally:
            server.stop()


@contextmanager
def temporary_folder(parent: Path | None = None) -> Iterator[Path]:
    """A folder that every user can reach, gone at the end."""
    made = open_folder_in(parent)
    try:
        yield made
    finally:
        shutil.rmtree(made)


def strict_skip(reason: str) -> NoReturn:
    """Skip a test for want of a tool; with HWQUEUE_TEST_STRICT=1, as in CI, that is a failure."""
    if os.environ.get("HWQUEUE_TEST_STRICT") == "1":
        pytest.fail(reason)
    pytest.skip(reason)
