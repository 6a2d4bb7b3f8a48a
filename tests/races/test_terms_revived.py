"""A sign of life that was written before a node was taken for dead, and is committed afterwards."""

from datetime import timedelta

import psycopg

from hwqueue.testing import install_clock
from tests.direct import Direct
from tests.races.cluster import QUEUE, register
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


def test_a_better_node_comes_back_after_long(conn: psycopg.Connection, dsn: str) -> None:
    """By a heartbeat, and at once: what was remembered while it was silent holds no longer."""
    clock = install_clock(conn)
    direct = Direct(conn)
    direct.create_queue(QUEUE, {"patience": "1 hour"})
    better, other = register(conn, 1, labels={"disk": "ssd"}), register(conn, 2)
    likes = {"placement": {"prefer": [{"weight": 100, "when": {"tags": {"disk": "ssd"}}}]}}
    clock.advance(timedelta(minutes=10))
    direct.heartbeat(*other, [])
    for _ in range(2):  # the first look may be remembered only by the second
        direct.spawn(QUEUE, likes)
        assert len(direct.claim(QUEUE, *other)) == 1
    direct.heartbeat(*better, [])
    direct.spawn(QUEUE, likes)
    assert direct.claim(QUEUE, *other) == []
    assert len(direct.claim(QUEUE, *better)) == 1


def test_a_better_node_proves_to_be_alive(conn: psycopg.Connection, dsn: str) -> None:
    """A second later leases wait for it again."""
    clock = install_clock(conn)
    direct = Direct(conn)
    direct.create_queue(QUEUE, {"patience": "1 hour"})
    better, other = register(conn, 1, labels={"disk": "ssd"}), register(conn, 2)
    likes = {"placement": {"prefer": [{"weight": 100, "when": {"tags": {"disk": "ssd"}}}]}}
    direct.spawn(QUEUE, likes)
    clock.advance(timedelta(seconds=40))
    with interleave(dsn) as actor:
        late = actor()
        late.begin()
        late.direct.heartbeat(*better, [])
        direct.heartbeat(*other, [])
        clock.advance(timedelta(seconds=10))
        assert len(direct.claim(QUEUE, *other)) == 1
        late.commit()
    direct.spawn(QUEUE, likes)
    clock.advance(timedelta(seconds=2))
    assert direct.claim(QUEUE, *other) == []
    assert len(direct.claim(QUEUE, *better)) == 1
