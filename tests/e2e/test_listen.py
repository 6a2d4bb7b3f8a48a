"""What wakes a worker: the notifications of its queues, and nothing that others send."""

import asyncio

import psycopg
import pytest

import hwqueue.worker.listen as listen_module
from hwqueue import Client
from hwqueue.worker.listen import listen
from tests.e2e.worker_support import BOUND_SECONDS


async def test_only_what_stands_for_its_queues_wakes(dsn: str) -> None:
    """Notifications come in order, so once the last one has woken, the others have not."""
    woken = asyncio.Queue[None]()
    with Client(dsn) as client:
        [mine, other] = [client.wake_payloads([queue])[0].payload for queue in ("mine", "other")]
    listening = asyncio.create_task(listen(dsn, 0, ["mine"], lambda: woken.put_nowait(None)))
    async with asyncio.timeout(BOUND_SECONDS):
        await woken.get()  # it listens, and something may have come before
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        for payload in ("", "0:mine", "mine", other, mine.upper(), mine):
            await connection.execute("select pg_notify('hwqueue', %s)", [payload])
    await woken.get()
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        await connection.execute("select pg_notify('hwqueue', %s)", [mine])
    await woken.get()
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

    monkeypatch.setattr(listen_module, "_subscribe", refused)
    monkeypatch.setattr(listen_module, "_MOST_WAIT_SECONDS", 0.01)
    listening = asyncio.create_task(listen(dsn, 0, ["mine"], lambda: None))
    while tries.qsize() < 8:
        await asyncio.sleep(0)
    listening.cancel()
    await asyncio.wait({listening})
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [
        "cannot LISTEN, polling instead and trying again: permission denied; "
        "the login that listens needs the role hwqueue_worker",
        "cannot LISTEN, polling instead and trying again: "
        "connection refused Is the server running?",
    ]
