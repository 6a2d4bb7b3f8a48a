"""A sign of life that was written before a node was taken for dead, and is committed afterwards."""

from datetime import timedelta

import psycopg

from hwqueue.testing import install_clock
from tests.direct import Direct
from tests.races.cluster import QUEUE
from tests.races.interleave import interleave
from tests.races.terms import place
from tests.races.test_terms_remembered import complete, one_everywhere


def test_a_heartbeat_that_is_committed_late(conn: psycopg.Connection, dsn: str) -> None:
    """Its node was taken for dead meanwhile, and lives: its empty place holds up others again."""
    clock = install_clock(conn)
    nodes, running = one_everywhere(conn)
    direct, empty = Direct(conn), place(conn, 3, 3)
    clock.advance(timedelta(seconds=40))
    with interleave(dsn) as actor:
        late = actor()
        late.begin()
        late.direct.heartbeat(*empty, [])
        for node, claim in zip(nodes, running, strict=True):
            direct.heartbeat(*node, [claim])
        clock.advance(timedelta(seconds=10))
        [second] = direct.claim(QUEUE, *nodes[0])
        late.commit()
    complete(direct, second)
    assert direct.claim(QUEUE, *nodes[0]) == []
