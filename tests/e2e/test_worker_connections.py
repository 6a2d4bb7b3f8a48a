"""Workers whose connections are cut, pooled, or told of new work; what wakes them."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

import hwqueue.worker.listen as listen_module
from benchmarks.core import pooler
from hwqueue import Client, Worker
from hwqueue.client import AsyncClient, _pauses
from hwqueue.client._async.runner import AsyncPoolRunner
from hwqueue.client._drivers import Rows
from hwqueue.errors import SchemaTooOld
from hwqueue.types import Heartbeat, LeaseState, NodeSpec
from hwqueue.worker import listen as listening
from hwqueue.worker import loop as claims
from hwqueue.worker import queues
from hwqueue.worker.listen import Wanted, listen
from hwqueue.worker.session import NodeClient
from tests.e2e.programs import ran
from tests.e2e.worker_app import app
from tests.e2e.worker_support import (
    BOUND_SECONDS,
    QUEUE,
    RARELY,
    WAY,
    ended,
    settings,
    until,
    worker,
    worker_process,
    works,
)
from tests.fix_db import strict_skip

CUT = (  # and wait until they are gone
    "select pg_terminate_backend(pid, 10000) from pg_stat_activity"
    " where datname = current_database() and pid <> pg_backend_pid()"
)


def is_waited_for(conn: psycopg.Connection, listeners: int = 1) -> bool:
    """Whether a worker has found nothing, so that the next spawn notifies, and as many listen."""
    query = (
        "select 1 from hwqueue.queue_signal, pg_stat_activity where waiting_since is not null"
        " and datname = current_database() and query ~* '^listen' having count(*) = %s"
    )
    return conn.execute(query, [listeners]).fetchone() is not None


@pytest.mark.usefixtures("way")
async def test_a_worker_outlives_its_connections(
    client: AsyncClient, dsn: str, conn: psycopg.Connection, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    running = await client.spawn_lease(QUEUE, "wait-async", {"folder": str(tmp_path)})
    async with worker(dsn):
        await until((tmp_path / "started").exists)
        for _ in range(3):
            conn.execute(CUT)
            async with AsyncClient(dsn) as fresh:
                await works(fresh)
        (tmp_path / "go").touch()
        async with AsyncClient(dsn) as fresh:
            lease = await ended(fresh, running.lease_id)
    assert (lease.result, lease.attempt) == ("went", 1)
    assert ": trying again in" in caplog.text or WAY.over_http  # its server takes another connection


async def test_a_read_only_server_is_left_for_a_writable_one(
    client: AsyncClient, dsn: str, conn: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    database = conninfo_to_dict(dsn)["dbname"]
    async with worker(dsn):
        # As after a failover: the sessions live on and may not write any more, new ones may.
        conn.execute(f'alter database "{database}" set default_transaction_read_only = on')
        conn.execute(CUT)
        await until(lambda: "read-only transaction" in caplog.text)
        conn.execute("set default_transaction_read_only = off")
        conn.execute(f'alter database "{database}" reset default_transaction_read_only')
        async with AsyncClient(dsn) as fresh:
            await works(fresh)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize(
    ("way", "listen"), [("login", "auto"), ("login", "{dsn}"), ("http", "auto")], indirect=["way"]
)
async def test_a_notification_ends_the_wait(
    client: AsyncClient,
    dsn: str,
    conn: psycopg.Connection,
    *,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    listen: str,
) -> None:
    never = timedelta(hours=1)
    monkeypatch.setattr(claims, "_LOOK_ONCE_MORE_SECONDS", never.total_seconds())
    async with worker(dsn, listen=listen.format(dsn=dsn), poll_interval=never):
        for number in range(4):  # the worker has found nothing before each of them
            await until(partial(is_waited_for, conn))
            if number == 0:
                await client.spawn_lease(QUEUE, "wait-async", {"folder": str(tmp_path)})
                await until((tmp_path / "started").exists)  # it leaves slots free
            else:
                spawned = await client.spawn_lease(QUEUE, "add", {"a": number, "b": 0})
                assert (await ended(client, spawned.lease_id)).result == number


async def test_beside_a_worker_that_is_stopped_another_takes_what_is_announced(
    client: AsyncClient, dsn: str, conn: psycopg.Connection
) -> None:
    with worker_process(dsn, name="stopped", listen="auto", poll_interval=3600) as other:
        async with worker(dsn, listen="auto", poll_interval=timedelta(hours=1)):
            for number in range(20):
                await until(partial(is_waited_for, conn, 2))
                if number == 10:
                    other.send_signal(signal.SIGSTOP)
                spawned = await client.spawn_lease(QUEUE, "add", {"a": number, "b": 0})
                assert (await ended(client, spawned.lease_id)).result == number


async def test_a_listener_that_is_cut_off_listens_again(
    client: AsyncClient, dsn: str, conn: psycopg.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "hwqueue.worker")
    async with worker(dsn, listen="auto"):
        await until(lambda: "listening for new work" in caplog.text)
        conn.execute(CUT)
        await until(lambda: caplog.text.count("listening for new work") == 2)
    assert "LISTEN was cut off, polling until it is back" in caplog.text


async def test_a_listener_behind_a_pooler_says_once_that_it_hears_nothing(
    bouncer: str, client: AsyncClient, *, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(listening, "_ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(listening, "_TRY_AGAIN_SECONDS", 0.01)
    tries = count_calls(monkeypatch, listening, "_hears")
    async with worker(bouncer, listen="auto"):
        await until(lambda: len(tries) > 1)
        await works(client)
    assert caplog.text.count("LISTEN hears nothing on this connection") == 1


def count_calls(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> list[Any]:
    """What a function of a module answered, so far."""
    answers: list[Any] = []
    called = getattr(module, name)

    async def counted(*arguments: Any) -> Any:
        answers.append(await called(*arguments))
        return answers[-1]

    monkeypatch.setattr(module, name, counted)
    return answers


@pytest.mark.parametrize(
    ("listen", "said"),
    [("host=127.0.0.1 port=1", "cannot LISTEN, polling instead"), ("off", "not listening: polling every")],
)
async def test_without_listen_the_worker_polls(
    client: AsyncClient, dsn: str, caplog: pytest.LogCaptureFixture, listen: str, said: str
) -> None:
    caplog.set_level(logging.INFO, "hwqueue.worker")
    async with worker(dsn, listen=listen):
        await until(partial(is_logged, caplog, said))
        await works(client)
    assert ("LISTEN" in caplog.text) is (listen != "off")


@pytest.mark.usefixtures("way")
async def test_an_unknown_queue_is_waited_for(
    client: AsyncClient, dsn: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(queues, "_ASK_AGAIN_SECONDS", 0.05)
    for others in ((), (QUEUE,)):
        late = f"late-{len(others)}"
        async with worker(dsn, queues=(late, *others)):
            await until(partial(is_logged, caplog, f'queue "{late}" does not exist'))
            for name in others:
                await works(client, name)
            await client.create_queue(late)
            await works(client, late)
        [told] = [each.message for each in caplog.records if f'"{late}" does not exist' in each.message]
        assert told.startswith("claiming nothing until there is this queue") is (not others)
        assert told.endswith(f"make it: hwqueue queue create {late}")


def is_logged(caplog: pytest.LogCaptureFixture, words: str) -> bool:
    return words in caplog.text


async def test_after_an_outage_a_heartbeat_comes_before_the_next_claim(
    client: AsyncClient, dsn: str, conn: psycopg.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the worker may be given again, as expired, what its handlers still run."""
    said = record_calls(monkeypatch)
    await client.spawn_lease(QUEUE, "wait-async", {"folder": str(tmp_path)})
    async with worker(dsn, **RARELY):
        await until((tmp_path / "started").exists)
        assert "beat" not in said
        conn.execute(CUT)
        said.append("cut")
        await until(lambda: "claim" in said)
    assert said[: said.index("claim")] == ["cut", "beat"]


def record_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the database has answered: beat, and claim if that was asked for after a "cut"."""
    said: list[str] = []
    heartbeat_node, settle_batch = AsyncClient.heartbeat_node, NodeClient.settle_batch

    async def beat(self: AsyncClient, *args: Any, **options: Any) -> list[Heartbeat]:
        answer = await heartbeat_node(self, *args, **options)
        said.append("beat")
        return answer

    async def claim(self: NodeClient, *args: Any, **options: Any) -> Rows:
        is_later = "cut" in said
        answer = await settle_batch(self, *args, **options)
        if is_later and options["qty"]:
            said.append("claim")
        return answer

    monkeypatch.setattr(AsyncClient, "heartbeat_node", beat)
    monkeypatch.setattr(NodeClient, "settle_batch", claim)
    return said


@pytest.mark.parametrize("wrong", [{"dbname": "no_such_database"}, {"user": "no_such_role"}])
async def test_wrong_settings_are_not_waited_out(dsn: str, wrong: dict[str, str]) -> None:
    refused = Worker(app, settings(make_conninfo(dsn, **wrong)))
    with pytest.raises(psycopg.OperationalError, match="no_such"):
        await asyncio.wait_for(refused.run(), 10)


async def test_a_worker_does_not_work_with_another_schema(dsn: str, conn: psycopg.Connection) -> None:
    conn.execute("update hwqueue.schema_info set bundle_sha256 = 'of an older bundle'")
    with pytest.raises(SchemaTooOld, match="an upgrade is due"):
        await asyncio.wait_for(Worker(app, settings(dsn)).run(), 10)
    result = await asyncio.to_thread(ran, dsn, "worker", "run", "--app", "tests.e2e.worker_app:app")
    assert result.returncode == 4
    assert "hwqueue db upgrade" in result.stderr


@pytest.fixture
def bouncer(dsn: str) -> Iterator[str]:
    """The test's database through PgBouncer in transaction mode."""
    if pooler.installed() is None:
        strict_skip("pgbouncer is not installed: apt-get install pgbouncer")
    with pooler.through_pooler(dsn, pool_size=2) as pooled:
        yield pooled


async def test_workers_run_through_pgbouncer_in_transaction_mode(
    client: AsyncClient, dsn: str, bouncer: str
) -> None:
    async with AsyncClient(bouncer) as producer:
        batch = [{"task": "add", "params": {"a": number, "b": 0}} for number in range(100)]
        spawned = await producer.spawn_leases(QUEUE, batch)
        # Two workers on two server connections, so that each of them meets the other's.
        async with worker(bouncer, listen=dsn), worker(bouncer, name="node-2"):
            leases = await asyncio.gather(*(ended(producer, one.lease_id) for one in spawned))
    assert {lease.state for lease in leases} == {LeaseState.COMPLETED}
    assert {lease.attempt for lease in leases} == {1}


async def test_asyncpg_spawns_through_pgbouncer_without_its_statement_cache(
    client: AsyncClient, bouncer: str
) -> None:
    """Two transactions meet each other's server connections, on which nothing is prepared."""
    at = conninfo_to_dict(bouncer)
    place = {"host": at["host"], "port": at["port"], "user": "any", "database": at["dbname"]}
    first = await asyncpg.connect(**place, statement_cache_size=0)
    second = await asyncpg.connect(**place, statement_cache_size=0)
    for connection in (first, second, first):
        async with connection.transaction():
            await AsyncClient.on(connection).spawn_lease(QUEUE, "add", {"a": 1, "b": 2})
    async with first.transaction(), second.transaction():
        for connection in (first, second):
            await AsyncClient.on(connection).spawn_lease(QUEUE, "add", {"a": 1, "b": 2})
    await first.close()
    await second.close()
    assert len(await client.list_leases(queue=QUEUE)) == 5


async def test_a_wait_through_pgbouncer_polls(
    client: AsyncClient, dsn: str, bouncer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It notices that nothing would be heard, and polls alone."""
    monkeypatch.setattr(_pauses, "LISTEN_AFTER_SECONDS", 0.0)
    listened = count_calls(monkeypatch, AsyncPoolRunner, "listen")
    async with AsyncClient(bouncer) as producer:
        spawned = await producer.spawn_lease(QUEUE, "add", {"a": 1, "b": 2})
        waiting = asyncio.create_task(spawned.result(timeout=timedelta(seconds=BOUND_SECONDS)))
        while not listened:
            await asyncio.sleep(0)
        async with worker(dsn):
            assert await waiting == 3
    assert listened == [None]


async def test_an_actor_is_not_handed_on_by_a_pooler(client: AsyncClient, bouncer: str) -> None:
    """It is said in the transaction that does it; the next one on that connection has none."""
    names = [f"user-{number}" for number in range(20)]
    async with AsyncClient(bouncer, pool_size=8) as pooled:
        calls = [pooled.acting_as(name).create_queue(name) for name in names]
        await asyncio.gather(*calls, *(pooled.create_queue(f"plain-{name}") for name in names))
    for name in names:
        [said], [plain] = [await client.list_events(queue=q) for q in (name, f"plain-{name}")]
        assert said.actor == name
        assert plain.actor not in names


async def test_only_what_stands_for_its_queues_and_its_node_wakes(dsn: str) -> None:
    """Notifications come in order, so once the last one has woken, the others have not."""
    woken = asyncio.Queue[str]()
    nodes = {name: uuid4() for name in ("mine", "other")}
    with Client(dsn) as client:
        for name, node_id in nodes.items():
            client.register_node(node_id, NodeSpec(name=name, instance_id="first"))
        [mine, other] = [client.wake_payloads([queue])[0].payload for queue in nodes]
        [my_node, other_node] = [client.node_wake_payload(node_id) for node_id in nodes.values()]
    wanted = Wanted(
        ["mine"],
        nodes["mine"],
        on_work=lambda: woken.put_nowait("work"),
        on_stop=lambda: woken.put_nowait("stop"),
    )
    listening = asyncio.create_task(listen(dsn, wanted))
    async with asyncio.timeout(BOUND_SECONDS):
        # it listens, and something may have come before
        assert [await woken.get(), await woken.get()] == ["work", "stop"]
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
            for payload in ("", "0:mine", "mine", other, other_node, mine.upper(), my_node):
                await connection.execute("select pg_notify('hwqueue', %s)", [payload])
            assert await woken.get() == "stop"
            await connection.execute("select pg_notify('hwqueue', %s)", [mine])
            assert await woken.get() == "work"
    assert woken.empty()
    listening.cancel()
    await asyncio.wait({listening})


async def test_what_keeps_it_from_listening_is_said_once(
    dsn: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In one line, with what to grant, however often it tries."""
    tries = asyncio.Queue[None]()
    reasons = [
        psycopg.errors.InsufficientPrivilege("permission denied\nLINE 1: select queue\n  ^"),
        psycopg.OperationalError("connection refused\n\tIs the server running?"),
    ]

    async def refused(*_arguments: object) -> None:
        tries.put_nowait(None)
        raise reasons[0 if tries.qsize() < 4 else 1]

    wanted = Wanted(["mine"], uuid4(), on_work=lambda: None, on_stop=lambda: None)
    monkeypatch.setattr(listen_module, "_subscribe", refused)
    monkeypatch.setattr(listen_module, "_MOST_WAIT_SECONDS", 0.01)
    listening = asyncio.create_task(listen(dsn, wanted))
    while tries.qsize() < 8:
        await asyncio.sleep(0)
    listening.cancel()
    await asyncio.wait({listening})
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        "cannot LISTEN, polling instead and trying again: permission denied; "
        "the login that listens needs the role hwqueue_worker",
        "cannot LISTEN, polling instead and trying again: connection refused Is the server running?",
    ]
