"""Low-water marks move at every claim: where they can be wrong, let the races see it."""

from collections.abc import Iterator

import psycopg
import pytest

from tests.calls import Calls
from tests.flows import broken
from tests.races.interleave import Actor, interleave


@pytest.fixture(autouse=True)
def _eager(eager_marks: None) -> None:
    """Every test here has a database of its own."""


@pytest.fixture
def calls(conn: psycopg.Connection) -> Iterator[Calls]:
    """The session that looks; after the test every tally is right, and no wait missed a signal."""
    made = Calls(conn)
    yield made
    assert broken(made) == []


@pytest.fixture
def two(dsn: str, calls: Calls) -> Iterator[list[Actor]]:
    """Sessions that stay open; the looking one fails where it would have to wait for them."""
    with interleave(dsn) as actor:
        calls.conn.execute("set lock_timeout = '200ms'")
        yield [actor(), actor()]


@pytest.fixture
def one(two: list[Actor]) -> Actor:
    """The first of them."""
    return two[0]
