"""Notifications hold no names: any login of the database hears them."""

import re

import psycopg

from tests.sql.api import Api, Node


def test_a_payload_tells_no_name(api: Api, queue: str, node: Node, conn: psycopg.Connection) -> None:
    assert api.claim(node, queue) == []
    conn.execute("listen hwqueue")
    api.spawn(queue)
    [payload] = [notify.payload for notify in conn.notifies(timeout=0)]
    assert re.fullmatch("[0-9a-f]{32}", payload)
    assert payload == api.wake_payload(queue)
    # without the key there is nothing to compare guesses of names with
    row = conn.execute("select left(encode(sha256(%s), 'hex'), 32)", [queue.encode()])
    assert row.fetchone() != (payload,)


def test_each_queue_has_its_own(api: Api) -> None:
    rows = api.rows("wake_payloads", queues=["a", "b", "a"])
    assert sorted(row["queue"] for row in rows) == ["a", "b"]
    assert len({row["payload"] for row in rows}) == 2
    for queues in ([None], None):
        assert api.fault("wake_payloads", queues=queues) == "p_queues"
