"""What a database knows of itself: its version, its generation, transactions that it has seen end."""

from contextlib import ExitStack
from typing import Any

import psycopg
import pytest
from psycopg import sql

from hwqueue.schema.state import head_revision
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


OWN = "select pg_current_xact_id()::text"
IS_UNSEEN = "select hwqueue.is_unseen(%s::text::xid8, %s::text[]::xid8[], %s::text::xid8)"
HAS_ENDED = "select hwqueue.has_ended(%s::text::xid8)"


class Reader:
    """What one session has seen at a time."""

    def __init__(self, conn: psycopg.Connection) -> None:
        self.conn = conn
        [(unseen, next_xid)] = conn.execute(
            "select unseen::text[], next_xid::text from hwqueue.visible_now()"
        ).fetchall()
        self.unseen: list[str] = unseen
        self.next_xid: str = next_xid

    def misses(self, xid: str) -> bool:
        """Whether it cannot have seen what the transaction wrote."""
        return bool(ask(self.conn, IS_UNSEEN, xid, self.unseen, self.next_xid))


def ask(conn: psycopg.Connection, query: str, *values: object) -> Any:
    """The one answer of a question."""
    [(answer,)] = conn.execute(query.encode(), values).fetchall()
    return answer


def xid(conn: psycopg.Connection) -> str:
    """The id of the session's transaction, given to it now if it has none."""
    return str(ask(conn, OWN))


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_who_ran_and_who_came_later_are_unseen(conn: psycopg.Connection, dsn: str, end: str) -> None:
    """Also once they have ended: what is asked is what the reader saw then."""
    with ExitStack() as stack:
        running, later = (stack.enter_context(psycopg.connect(dsn)) for _ in range(2))
        ended, open_id = xid(conn), xid(running)
        reader = Reader(conn)
        later_id = xid(later)
        for found in (open_id, later_id):
            assert reader.misses(found)
            assert not ask(conn, HAS_ENDED, found)
        assert not reader.misses(ended)
        getattr(running, end)()
        getattr(later, end)()
        for found in (open_id, later_id):
            assert reader.misses(found)
            assert ask(conn, HAS_ENDED, found)
        again = Reader(conn)
        assert not again.misses(open_id)
        assert not again.misses(later_id)


def test_the_readers_own_transaction_is_unseen(conn: psycopg.Connection, dsn: str) -> None:
    """It may go on writing, whether younger transactions have ended or not."""
    with psycopg.connect(dsn) as own:
        own_id = xid(own)
        for _ in range(2):
            reader = Reader(own)
            assert reader.misses(own_id)
            assert not ask(own, HAS_ENDED, own_id)
            younger = xid(conn)
        assert int(younger) > int(own_id)


def test_a_subtransaction_counts_by_its_top(conn: psycopg.Connection, dsn: str) -> None:
    """Rows carry the id of the whole transaction, which a snapshot names."""
    with psycopg.connect(dsn) as other:
        other.execute("savepoint a")
        inner = xid(other)
        other.execute("release a")
        assert xid(other) == inner
        reader = Reader(conn)
        assert reader.misses(inner)
        other.execute("savepoint b")
        other.rollback()
        assert reader.misses(inner)
        assert not Reader(conn).misses(inner)


def test_a_prepared_transaction_runs_until_it_is_finished(conn: psycopg.Connection, dsn: str) -> None:
    if ask(conn, "show max_prepared_transactions") == "0":
        pytest.skip("max_prepared_transactions is 0")
    with psycopg.connect(dsn, autocommit=True) as other:
        other.execute("begin")
        held = xid(other)
        other.execute("prepare transaction 'seen'")
        assert Reader(conn).misses(held)
        other.execute("commit prepared 'seen'")
        assert not Reader(conn).misses(held)


@pytest.mark.parametrize("ahead", [False, True])
def test_what_another_server_left(conn: psycopg.Connection, ahead: bool) -> None:
    """Ids that this server has not come to say nothing; nothing has been seen then."""
    mark = int(xid(conn)) + (1000 if ahead else 0)
    valid = ask(conn, "select hwqueue.valid_next_xid(%s::text::xid8)::text", str(mark))
    assert valid == ("0" if ahead else str(mark))


def test_it_tells_what_the_upgrade_wrote(api: Api, conn: psycopg.Connection) -> None:
    row = api.row("schema_version")
    assert row["revision"] == head_revision()
    written = conn.execute(
        "select revision, bundle_sha256, package_version from hwqueue.schema_info"
    ).fetchone()
    assert tuple(row.values())[:3] == written
