"""Spawn three leases, act on each as it ends, then take the result of one.

Run: HWQUEUE_DSN=$(hwqueue db url) python results.py
"""

import asyncio
import os
from datetime import timedelta
from typing import Any

import hwqueue
from hwqueue.errors import LeaseFailed
from hwqueue.worker import Worker, WorkerSettings

app = hwqueue.App()


@app.task("square", queue="results", max_attempts=1)
async def square(params: dict[str, Any]) -> int:
    return int(params["n"]) ** 2


async def main() -> None:
    dsn = os.environ["HWQUEUE_DSN"]
    async with hwqueue.AsyncClient(dsn) as client:
        await client.create_queue("results")
        spawned = [await square.spawn(client, {"n": n}) for n in (2, 3, "four")]

        worker = Worker(app, WorkerSettings(dsn=dsn, queues=("results",)))
        working = asyncio.create_task(worker.run())

        at_most = timedelta(seconds=30)
        ids = [one.lease_id for one in spawned]
        async for lease in client.as_completed(ids, timeout=at_most):
            print(lease.params["n"], lease.state.value)
        print(await spawned[1].result(timeout=at_most))
        try:
            await spawned[2].result(timeout=at_most)
        except LeaseFailed as error:
            print(error.detail["error"]["type"])

        worker.stop()
        await working


if __name__ == "__main__":
    asyncio.run(main())
