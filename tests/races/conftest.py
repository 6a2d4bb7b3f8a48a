"""The session that looks and those that stay open.

Low-water marks move at every claim: where they can be wrong, let the races see it.
"""

from collections.abc import Iterator

import psycopg
import pytest

from tests.direct import Direct
from tests.races.cluster import OTHER, QUEUE, Node, register
from tests.races.interleave import Actor, Actors, Meet, bound_waits, interleave
from tests.races.marks import Line


@pytest.fixture(autouse=True)
def _eager(eager_marks: None) -> None:
    """Every test here has a database of its own."""


@pytest.fixture
def direct(conn: psycopg.Connection) -> Iterator[Direct]:
    """The session that looks, and two queues; after the test no invariant is broken."""
    made = Direct(conn)
    for queue in (QUEUE, OTHER):
        made.create_queue(queue)
    yield made
    assert made.rows("verify_invariants") == []


@pytest.fixture
def node(direct: Direct) -> Node:
    """One that counts nothing."""
    return register(direct)


@pytest.fixture
def stands() -> bool:
    """Whether the front of the line stands still, where no test has it both ways."""
    return False


@pytest.fixture
def line(direct: Direct, stands: bool) -> Line:
    """A queue at work."""
    return Line(direct, stands=stands)


@pytest.fixture
def actor(dsn: str, direct: Direct) -> Iterator[Actors]:
    """Makes sessions that stay open; the looking one fails where it would have to wait for them."""
    with interleave(dsn) as made:
        bound_waits(direct.conn)
        yield made


@pytest.fixture
def meet(actor: Actors) -> Meet:
    """Lets two calls meet."""
    return Meet(actor)


@pytest.fixture
def one(actor: Actors) -> Actor:
    """One of them, its transaction open."""
    return actor().begin()


@pytest.fixture
def two(actor: Actors) -> Actor:
    """Another one, without a transaction."""
    return actor()
