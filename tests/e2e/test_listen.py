"""What wakes a worker: the notifications of its queues, and nothing that others send."""

import asyncio
from uuid import uuid4

import psycopg
import pytest

import hwqueue.worker.listen as listen_module
from hwqueue import Client
from hwqueue.types import NodeSpec
from hwqueue.worker.listen import Wanted, listen
from tests.e2e.worker_support import BOUND_SECONDS


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
            for payload in ("", "0:mine", "mine", other, other_node, mine.upper(), my_node, mine):
                await connection.execute("select pg_notify('hwqueue', %s)", [payload])
        assert [await woken.get(), await woken.get()] == ["stop", "work"]
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
