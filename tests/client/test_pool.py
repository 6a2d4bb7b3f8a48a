"""A client's own connections: opening, what they leave in a session, being cut off or given up."""

import asyncio
import inspect
import os
import threading
from typing import Any
from unittest.mock import Mock

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from hwqueue import errors
from hwqueue.client import AsyncClient, Client
from hwqueue.connections import WatchedAsyncConnection, WatchedConnection
from hwqueue.types import NodeSpec
from tests.client.conftest import Awaitable, of_kind


def test_both_clients_have_the_same_methods() -> None:
    def signatures(kind: type) -> dict[str, inspect.Signature]:
        methods = inspect.getmembers(kind, inspect.isfunction)
        return {name: inspect.signature(m) for name, m in methods if not name.startswith("_")}

    def spelt(kind: type) -> dict[str, str]:
        """As text, with what is awaited or iterated under the name of its sync form."""
        return {
            name: str(one).replace("AsyncSpawned", "Spawned").replace("AsyncIter", "Iter")
            for name, one in signatures(kind).items()
        }

    assert spelt(Client) == spelt(AsyncClient)
    for name in signatures(AsyncClient):
        if name not in ("acting_as", "as_completed"):  # asks nobody; is iterated
            assert inspect.iscoroutinefunction(getattr(AsyncClient, name)), name
        assert inspect.getdoc(getattr(AsyncClient, name)), name


# Sessions of others in the database.
OTHERS = (
    "from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    " and backend_type = 'client backend'"
)


async def test_a_closed_client_says_so(dsn: str) -> None:
    client = AsyncClient(dsn)
    with pytest.raises(errors.ConfigError, match="not open"):
        await client.list_queues()
    await client.open()
    assert await client.list_queues() == []
    await client.close()
    with pytest.raises(errors.ConfigError, match="not open"):
        await client.list_queues()
    with pytest.raises(errors.ConfigError, match="at least 1"):
        Client(dsn, pool_size=0)


async def test_an_unreachable_server_is_reported_at_once(kind: str, dsn: str) -> None:
    nowhere = make_conninfo(dsn, dbname="there_is_no_such_database")
    client = of_kind(kind, nowhere)
    with pytest.raises(psycopg.OperationalError, match="there_is_no_such_database") as caught:
        await client.open()
    [note] = caught.value.__notes__
    assert note.startswith("hint: check host, port, database")


async def test_opening_twice_leaves_nothing_behind(kind: str, dsn: str, conn: psycopg.Connection) -> None:
    client = of_kind(kind, dsn)
    await client.open()
    await client.open()
    await client.list_queues()
    await client.close()
    for _ in range(1000):
        if conn.execute(f"select count(*) {OTHERS}").fetchone() == (0,):
            return
        await asyncio.sleep(0.01)
    raise AssertionError("a session is left")


@pytest.mark.slow
async def test_the_pool_is_soon_back_after_an_outage(kind: str, dsn: str, server_dsn: str) -> None:
    """By itself it would try again after 1, 3, 7, 15 ... s, whenever the server is back."""
    client = of_kind(kind, dsn, pool_size=1)
    await client.open()
    await client.list_queues()
    database = conninfo_to_dict(dsn)["dbname"]
    away = f'alter database "{database}" allow_connections '
    with psycopg.connect(server_dsn, autocommit=True) as elsewhere:
        elsewhere.execute(away + "false")
        elsewhere.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where datname = %s", [database]
        )
    with pytest.raises(psycopg.OperationalError):
        await client.list_queues()
    waiting = asyncio.create_task(client.list_queues())
    await asyncio.sleep(3.5)
    assert not waiting.done()
    with psycopg.connect(server_dsn, autocommit=True) as elsewhere:
        elsewhere.execute(away + "true")
    async with asyncio.timeout(2.5):
        assert await waiting == []
    await client.close()


def asked(client: Client, statement: str) -> list[Any]:
    """What a connection of the client's pool answers."""
    assert client._pool is not None
    assert client._pool._pool is not None
    with client._pool._pool.connection() as connection:
        return list(connection.execute(statement))


def test_nothing_is_left_in_the_session(dsn: str, conn: psycopg.Connection) -> None:
    statements = "select count(*) from pg_prepared_statements"
    with Client(dsn, pool_size=1) as client:
        for _ in range(8):
            client.list_queues()
        assert asked(client, statements) == [(0,)]
        counts = conn.execute(f"select count(*), count(*) filter (where state <> 'idle') {OTHERS}")
        assert counts.fetchone() == (1, 0)
    with Client(dsn, pool_size=1, prepare=True) as client:
        for _ in range(8):
            client.list_queues()
        assert asked(client, statements) != [(0,)]


async def test_cancelling_the_caller_does_not_cancel_the_statement(
    dsn: str, conn: psycopg.Connection
) -> None:
    async with AsyncClient(dsn) as client:
        await client.create_queue("work")
        spawned = await client.spawn_lease("work", "t", {"a": 1})
        node = spawned.lease_id  # any uuid will do
        epoch = await client.register_node(node, NodeSpec(name="n", instance_id="i"))
        with conn.transaction():
            # the claim waits for the node that is held here, whatever becomes of its caller
            conn.execute("select from hwqueue.node_state for update")
            claiming = asyncio.create_task(client.claim_task(["work"], node, epoch))
            await lock_is_waited_for(dsn)
            claiming.cancel()
            await asyncio.sleep(0)
            assert not claiming.done()
        with pytest.raises(asyncio.CancelledError):
            await claiming
        assert (await client.get_lease(spawned.lease_id)).state == "claimed"


async def lock_is_waited_for(dsn: str) -> None:
    """Return as soon as a session of the database waits for a lock."""
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as watcher:
        for _ in range(1000):
            cursor = await watcher.execute(
                "select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
            )
            if await cursor.fetchone() is not None:
                return
            await asyncio.sleep(0.01)
    raise AssertionError("nobody waits")


def test_a_server_that_turned_read_only_is_left(dsn: str, conn: psycopg.Connection) -> None:
    conn.execute(f'alter database "{conn.info.dbname}" set default_transaction_read_only = on')
    session = "select pg_backend_pid()"
    with Client(dsn, pool_size=1) as client:
        before = asked(client, session)
        assert asked(client, session) == before
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            client.create_queue("q")
        assert asked(client, session) != before


async def test_connections_that_ended_while_idle_are_not_used(
    kind: str, dsn: str, conn: psycopg.Connection
) -> None:
    async with of_kind(kind, dsn, pool_size=3) as client:
        await asyncio.gather(*(client.list_queues() for _ in range(6)))
        conn.execute(f"select count(pg_terminate_backend(pid, 10000)) {OTHERS}")
        for _ in range(4):
            assert await client.list_queues() == []


async def test_asking_costs_nothing_while_they_are_in_use(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    async def ask(connection: object) -> None:
        asked.append(connection)

    monkeypatch.setattr("psycopg_pool.AsyncConnectionPool.check_connection", ask)
    async with AsyncClient(dsn, pool_size=1) as client:
        for _ in range(3):
            await client.list_queues()
        assert asked == []
        monkeypatch.setattr("hwqueue.client._async.runner._IDLE_SECONDS", 0.0)
        await client.list_queues()
        assert len(asked) == 1


@pytest.mark.parametrize("first", ["uses", "closes"])
def test_a_fork_does_not_use_the_connections_of_its_parent(dsn: str, first: str) -> None:
    with Client(dsn, pool_size=2) as client:
        client.create_queue("q")
        child = os.fork()
        if child == 0:  # no test code may run on from here
            code = 1
            try:
                if first == "closes":
                    client.close()
                else:
                    with pytest.raises(errors.ConfigError, match="fork") as caught:
                        client.list_queues()
                    assert "open()" in str(caught.value.hint)
                client.open()
                client.create_queue("of-the-child")
                client.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        assert {queue.queue for queue in client.list_queues()} == {"q", "of-the-child"}


@pytest.mark.parametrize("isolation", ["serializable", "repeatable read"])
async def test_transactions_are_read_committed_whatever_the_default(
    kind: str, dsn: str, conn: psycopg.Connection, isolation: str
) -> None:
    conn.execute(f"alter database \"{conn.info.dbname}\" set default_transaction_isolation = '{isolation}'")
    async with of_kind(kind, dsn) as made:
        await made.create_queue("work")
        await made.reap()
        await made.prune()
    with psycopg.connect(dsn) as connection:
        with pytest.raises(errors.IsolationLevel, match=isolation) as caught:
            Client.on(connection).reap()
        assert "alter role" in str(caught.value.hint)


SLOW = "select pg_sleep(%s)"


@pytest.mark.parametrize("kind", [WatchedConnection, WatchedAsyncConnection])
async def test_who_waits_too_long_is_told(dsn: str, kind: Any) -> None:
    made = kind.connect(dsn, autocommit=True)
    connection = await made if kind is WatchedAsyncConnection else made
    waits: Any = connection if kind is WatchedAsyncConnection else Awaitable(connection, inline=True)
    connection.answer_within = 30.0
    await waits.execute(SLOW, [0])
    connection.answer_within = 0.1
    with pytest.raises(psycopg.OperationalError):
        await waits.execute(SLOW, [60])
    assert connection.closed


def test_nobody_hangs_up_once_the_answer_is_there(
    dsn: str, conn: psycopg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The descriptor may be another connection's by then."""
    told: list[str] = []

    def hang_up(_: object) -> None:
        conn.execute("select pg_advisory_unlock(1)")  # and the answer comes
        told.append("begins")
        threading.Event().wait(0.5)
        told.append("ends")

    monkeypatch.setattr("hwqueue.connections._hang_up", hang_up)
    with WatchedConnection.connect(dsn, autocommit=True) as connection:
        conn.execute("select pg_advisory_lock(1)")
        connection.answer_within = 0.05
        connection.execute("select pg_advisory_lock(1)")
        assert told[:2] == ["begins", "ends"]
        connection.answer_within = None


async def test_nor_in_an_event_loop(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, hang_up = asyncio.get_running_loop(), Mock()
    watches: list[asyncio.TimerHandle] = []

    def later(seconds: float, call: Any, *arguments: Any) -> asyncio.TimerHandle:
        handle = loop.call_at(loop.time() + seconds, call, *arguments)
        watches.extend([handle] if call is hang_up else [])
        return handle

    monkeypatch.setattr(loop, "call_later", later)
    monkeypatch.setattr("hwqueue.connections._hang_up", hang_up)
    async with await WatchedAsyncConnection.connect(dsn, autocommit=True) as connection:
        connection.answer_within = 60.0
        await connection.execute(SLOW, [0])
        assert {each.cancelled() for each in watches} == {True}
