"""The generation that leads every token: it rises when the server is another one than last time."""

import psycopg
import pytest
from psycopg import sql

from tests.sql.api import Api, outlive, token


def generation(conn: psycopg.Connection) -> int:
    return int(Api(conn).one("select generation from hwqueue.installation"))


def test_a_token_is_generation_and_counter(api: Api, conn: psycopg.Connection) -> None:
    """The same server keeps its generation."""
    queue, node = api.queue(), api.node()
    claim, kept = api.running(queue, node), generation(conn)
    assert claim["claim_token"] == kept
    for odd in (3, 5):
        api.rows("release_lease", **token(claim))
        api.rows("reap")
        [claim] = api.claim(node, queue)
        assert claim["claim_token"] == generation(conn) + odd == kept + odd


def become_another_server(conn: psycopg.Connection, column: str) -> None:
    """What was written down is another server's, which was started at another time, too."""
    for table in ("installation", "node_state"):
        conn.execute(
            sql.SQL("update hwqueue.{} set server_started_at = server_started_at - interval '1 hour'").format(
                sql.Identifier(table)
            )
        )
    conn.execute(sql.SQL("update hwqueue.installation set {0} = {0} + 1").format(sql.Identifier(column)))


@pytest.mark.parametrize("function", ["claim_task", "reap", "adopt_lease"])
def test_another_timeline_raises_it(api: Api, conn: psycopg.Connection, function: str) -> None:
    """As after a failover: what was granted there may be lost here, and its tokens with it."""
    queue, node = api.queue(), api.node()
    old = api.running(queue, node)
    api.rows("release_lease", **token(old))
    before = generation(conn)
    become_another_server(conn, "timeline")
    if function == "reap":
        api.rows("reap")
    elif function == "adopt_lease":
        api.rows("adopt_lease", queue=queue, node=node.node_id, task="t")
    [new] = api.claim(node, queue)
    assert generation(conn) > before
    assert new["claim_token"] == generation(conn) + 3 > old["claim_token"]


@pytest.mark.parametrize("column", ["system_identifier", "timeline"])
def test_reap_sees_another_server(api: Api, conn: psycopg.Connection, column: str) -> None:
    """Transaction ids begin again on one that was restored, and ids of events go on rising."""
    queue, before = api.queue(), generation(conn)
    conn.execute("update hwqueue.event set event_id = event_id + (1::bigint << 50)")
    [restored] = api.rows("list_events", limit=1)
    become_another_server(conn, column)
    api.rows("reap")
    raised = generation(conn)
    assert raised >> 40 > before >> 40
    api.rows("reap")
    assert generation(conn) == raised
    api.rows("pause_queue", queue=queue)
    outlive(conn)
    new = api.rows("list_events", after=restored["event_id"])
    repaired = ["positions_repaired"] if column == "system_identifier" else []
    codes = ["generation_raised", *repaired, "queue_paused"]
    assert [event["code"] for event in new] == codes
    newest = api.rows("list_events", limit=len(codes))
    assert [event["event_id"] for event in newest] == [event["event_id"] for event in new][::-1]
