"""The pytest plugin of hwqueue: fixtures with a database for each test.

It is no module of the package, and imports it only in fixtures: pytest loads every plugin at its
start, and a run that uses no fixture of this one must not wait for a database driver.
"""

from __future__ import annotations

import os
import tempfile
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import hwqueue
    from hwqueue.testing import Clock, Fleet
    from hwqueue.testing.databases import TestRun

_RUN_ID: pytest.StashKey[str] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--hwqueue-dsn`."""
    parser.getgroup("hwqueue").addoption(
        "--hwqueue-dsn",
        default=None,
        metavar="DSN",
        help="Postgres server for the fixtures of hwqueue; its user must be allowed to create "
        "databases and roles. Default: HWQUEUE_TEST_DSN, else an embedded server for this run.",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Give the run an id, which all of its processes share."""
    of_controller = getattr(config, "workerinput", {}).get("hwqueue_run_id")
    config.stash[_RUN_ID] = of_controller or uuid.uuid4().hex[:12]


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker process of pytest-xdist the id."""
    node.workerinput["hwqueue_run_id"] = node.config.stash[_RUN_ID]


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config: pytest.Config) -> None:
    """Drop what is left, also after Ctrl-C: the process that started the run does, at its end."""
    if hasattr(config, "workerinput") or not _was_used(config):
        return
    _run_of(config).finish()


def _was_used(config: pytest.Config) -> bool:
    """Whether any process of the run has made a database; without imports."""
    run_id = config.stash.get(_RUN_ID, "")
    return Path(tempfile.gettempdir(), f"hwqueue-test-{run_id}").is_dir()


def _run_of(config: pytest.Config) -> TestRun:
    from hwqueue.testing.databases import TestRun

    dsn = config.getoption("--hwqueue-dsn") or os.environ.get("HWQUEUE_TEST_DSN", "")
    return TestRun(config.stash[_RUN_ID], dsn)


@pytest.fixture(scope="session")
def hwqueue_prepare() -> Callable[[str], object] | None:
    """Override it to put more into the template: return a function that is given its DSN.

    It is called once for the run, when the schema of hwqueue is installed: to create queues, or to
    run the migrations of the tables that are to lie beside it.
    """
    return None


@pytest.fixture(scope="session")
def hwqueue_session_dsn(
    pytestconfig: pytest.Config, hwqueue_prepare: Callable[[str], object] | None
) -> Iterator[str]:
    """A database for all tests of this process; for tests that roll back what they do."""
    with _run_of(pytestconfig).database(hwqueue_prepare) as dsn:
        yield dsn


@pytest.fixture
def hwqueue_dsn(
    pytestconfig: pytest.Config, hwqueue_prepare: Callable[[str], object] | None
) -> Iterator[str]:
    """A database of the test's own, with the schema of hwqueue; dropped after the test."""
    with _run_of(pytestconfig).database(hwqueue_prepare) as dsn:
        yield dsn


@pytest.fixture
def hwqueue_client(hwqueue_dsn: str) -> Iterator[hwqueue.Client]:
    """An open `Client` on the test's database."""
    from hwqueue import Client

    with Client(hwqueue_dsn) as client:
        yield client


@pytest.fixture
def hwqueue_async_client(hwqueue_dsn: str) -> hwqueue.AsyncClient:
    """An `AsyncClient` on the test's database, for any event loop: it connects for each call."""
    from hwqueue.testing.connecting import connecting_client

    return connecting_client(hwqueue_dsn)


@pytest.fixture
def hwqueue_clock(hwqueue_dsn: str) -> Iterator[Clock]:
    """The queue's clock in the test's database: `freeze()` and `advance(timedelta(hours=1))`."""
    import psycopg

    from hwqueue.testing import install_clock

    with psycopg.connect(hwqueue_dsn, autocommit=True) as connection:
        yield install_clock(connection)


@pytest.fixture
def hwqueue_fleet(hwqueue_client: hwqueue.Client) -> Fleet:
    """Made-up nodes in the test's database; none at first."""
    from hwqueue.testing import Fleet

    return Fleet(hwqueue_client)
