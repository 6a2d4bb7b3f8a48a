"""pause_queue and resume_queue: no claims meanwhile, everything else goes on."""

import psycopg
import pytest

from tests.sql.api import Api, token
from tests.sql.warm import WarmApi


def test_a_paused_queue_gives_nothing(api: Api, conn: psycopg.Connection) -> None:
    """Twice is once; resuming it wakes those who wait."""
    queue, other = api.queue(), api.queue()
    node = api.node()
    assert api.claim(node, queue) == []
    api.rows("pause_queue", queue=queue)
    before = api.contents()
    api.rows("pause_queue", queue=queue)
    assert api.contents() == before
    assert [row["paused"] for row in api.rows("list_queues") if row["queue"] == queue] == [True]
    conn.execute("listen hwqueue")
    api.rows("resume_queue", queue=queue)
    assert [n.payload for n in conn.notifies(timeout=0)] == [api.wake_payload(queue)]
    claim = api.running(queue, node)
    api.rows("pause_queue", queue=queue)
    waiting = api.spawn(queue)
    elsewhere = api.spawn(other)
    assert api.claimed(node, queue, other, qty=10) == [elsewhere]
    assert api.value("complete_lease", **token(claim)) == "completed"
    assert api.state(waiting) == "pending"
    api.rows("resume_queue", queue=queue)
    assert api.claimed(node, queue) == [waiting]
    for function in ("pause_queue", "resume_queue"):
        assert api.refused("QHQ01", function, queue="nowhere").detail["queue"] == "nowhere"


@pytest.mark.parametrize("kind", [Api, WarmApi], ids=["cold", "warm"])
def test_a_paused_queue_that_is_asked_alone(conn: psycopg.Connection, kind: type[Api]) -> None:
    """By a node's first claim, and by a later one."""
    api = kind(conn)
    queue, node = api.queue(), api.node()
    waiting = api.spawn(queue)
    api.rows("pause_queue", queue=queue)
    assert api.claim(node, queue) == []
    assert api.claim(node, queue, qty=5) == []
    api.rows("resume_queue", queue=queue)
    assert api.claimed(node, queue) == [waiting]
