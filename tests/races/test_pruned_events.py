"""Events that come while their day of the ring is about to be emptied."""

from datetime import timedelta

import psycopg

from hwqueue.testing import install_clock
from tests.direct import Direct
from tests.races.cluster import QUEUE
from tests.races.interleave import TIMEOUT, interleave

_PAUSE = "select hwqueue.pause_queue(%s)"
_PRUNE = "select hwqueue.prune(p_unless_within => '0')"


def test_one_is_committed_while_prune_waits(conn: psycopg.Connection, dsn: str) -> None:
    """It came into a day of long ago, since nobody pruned for two weeks: it stays."""
    clock = install_clock(conn)
    Direct(conn).create_queue(QUEUE)
    clock.advance(timedelta(days=16))
    with interleave(dsn) as actor:
        writer, pruner = actor(), actor()
        writer.begin()
        writer.conn.execute(_PAUSE, [QUEUE])
        pruned = pruner.start(lambda direct: direct.conn.execute(_PRUNE))
        pruner.wait_until_parked()
        writer.commit()
        pruned.result(TIMEOUT)
    codes = conn.execute("select code from hwqueue.list_events()").fetchall()
    assert ("queue_paused",) in codes
