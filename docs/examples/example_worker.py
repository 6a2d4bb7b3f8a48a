"""What the examples share: spawn leases of a task, run them one after another, return them."""

import asyncio
import os
from typing import Any

import hwqueue


def run(app: hwqueue.App, task: Any, *params: Any) -> list[hwqueue.Lease]:
    """A lease for each of these params, when all have ended."""
    return asyncio.run(_run(app, task, params))


async def _run(app: hwqueue.App, task: Any, params: tuple[Any, ...]) -> list[hwqueue.Lease]:
    dsn = os.environ["HWQUEUE_DSN"]
    async with hwqueue.AsyncClient(dsn) as client:
        await client.create_queue(task.defaults.queue)
        spawned = [await task.spawn(client, one) for one in params]
        settings = hwqueue.WorkerSettings(dsn=dsn, queues=(task.defaults.queue,), concurrency=1)
        worker = hwqueue.Worker(app, settings)
        working = asyncio.create_task(worker.run())
        leases = [await _ended(client, one.lease_id) for one in spawned]
        worker.stop()
        await working
    return leases


async def _ended(client: hwqueue.AsyncClient, lease_id: Any) -> hwqueue.Lease:
    while (lease := await client.get_lease(lease_id)).finished_at is None:
        await asyncio.sleep(0.05)
    return lease
