"""What wakes a worker: the notifications of its queues, and nothing that others send."""

import asyncio

import psycopg

from hwqueue import Client
from hwqueue.worker.listen import listen


async def test_only_what_stands_for_its_queues_wakes(dsn: str) -> None:
    """Notifications come in order, so once the last one has woken, the others have not."""
    woken = asyncio.Queue[None]()
    with Client(dsn) as client:
        [mine, other] = [client.wake_payloads([queue])[0].payload for queue in ("mine", "other")]
    listening = asyncio.create_task(listen(dsn, 0, ["mine"], lambda: woken.put_nowait(None)))
    await woken.get()  # it listens
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
