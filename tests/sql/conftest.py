"""One database for each file of tests; each test keeps to queues and nodes of its own.

Time stands still unless a test moves it, and never goes back within a file.
"""

from collections.abc import Iterator

import psycopg
import pytest

from hwqueue.schema.files import SQL_DIR
from hwqueue.testing import Clock
from tests.fix_db import fresh_database
from tests.sql.api import Api, Node
from tests.sql.gangs import clear, gpus
from tests.sql.logins import Logins, made_logins


@pytest.fixture(scope="module")
def database(server_dsn: str, template: str) -> Iterator[str]:
    """A migrated database for the tests of one file, its clock frozen."""
    with fresh_database(server_dsn, template) as made:
        with psycopg.connect(made, autocommit=True) as conn:
            conn.execute((SQL_DIR / "testing" / "clock.sql").read_bytes())
            Clock(conn).freeze()
        yield made


@pytest.fixture
def dsn(database: str) -> str:
    """The file's database."""
    return database


@pytest.fixture(scope="module")
def sessions() -> Iterator[dict[str, psycopg.Connection]]:
    """The connections of the file's tests, by database."""
    made: dict[str, psycopg.Connection] = {}
    yield made
    for connection in made.values():
        connection.close()


@pytest.fixture
def conn(dsn: str, sessions: dict[str, psycopg.Connection]) -> Iterator[psycopg.Connection]:
    """An autocommit connection, as new but for its plans: to make them takes half of a test."""
    if dsn not in sessions:
        sessions[dsn] = psycopg.connect(dsn, autocommit=True)
    connection = sessions[dsn]
    yield connection
    if connection.closed:
        del sessions[dsn]
        return
    connection.rollback()
    connection.autocommit = True
    connection.execute("reset session authorization")
    connection.execute("reset all")


@pytest.fixture
def clock(conn: psycopg.Connection) -> Clock:
    """The hold on the file's clock."""
    return Clock(conn)


@pytest.fixture
def api(conn: psycopg.Connection) -> Api:
    """The SQL functions on the file's database."""
    return Api(conn)


@pytest.fixture
def queue(api: Api) -> str:
    """A queue of the test's own."""
    return api.queue()


@pytest.fixture
def node(api: Api) -> Node:
    """A node of the test's own."""
    return api.node()


@pytest.fixture
def lone(api: Api) -> None:
    """No nodes are there but those that the test registers."""
    api.leave_all()


@pytest.fixture
def racks(api: Api) -> Iterator[list[Node]]:
    """Two nodes with a GPU in rack 1, three in rack 2, and no others; afterwards all invariants hold."""
    clear(api)
    yield [api.node(rack=rack, gpus=gpus(1)) for rack in (1, 1, 2, 2, 2)]
    assert api.rows("verify_invariants") == []


@pytest.fixture
def logins(dsn: str, conn: psycopg.Connection) -> Iterator[Logins]:
    """Logins of the test's own."""
    with made_logins(dsn, conn) as logins:
        yield logins
