"""A new term comes into force while others move what it has to count."""

import psycopg

from tests.direct import Direct
from tests.races.cluster import QUEUE, node_spec
from tests.races.interleave import TIMEOUT, interleave
from tests.races.terms import (
    RACK,
    ZONE,
    away,
    broken,
    lease,
    pause_at,
    pause_closed,
    pauses,
    place,
    publish,
)


def test_a_node_that_moves_counts_what_a_new_term_counts(conn: psycopg.Connection, dsn: str) -> None:
    """Whoever comes second finds it counted."""
    direct = Direct(conn)
    direct.create_queue(QUEUE)
    node, epoch = place(conn, 0, 0)
    direct.spawn(QUEUE, lease("x"))
    assert direct.claim(QUEUE, node, epoch)
    direct.spawn(QUEUE, lease("old", away("x", ZONE)))
    publish(direct)  # the claim counts for something: a move counts it anew
    pause_at(conn, "publish_term", "select count(*) into v_locked")
    direct.spawn(QUEUE, lease("new", away("x", RACK)))
    with interleave(dsn) as actor:
        reaping, agent = actor(), actor()
        pauses(reaping)
        with pause_closed(conn):
            published = reaping.start(publish)
            reaping.wait_until_parked()
            agent.direct.register(node, node_spec(0, rack=1, labels={"zone": "1"}))
        published.result(TIMEOUT)
    assert broken(conn) == []
