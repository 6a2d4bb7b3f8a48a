"""Define a task, spawn a lease of it, run it, look at the result: all in one process.

Run: HWQUEUE_DSN=$(hwqueue db url) python quickstart.py
"""

import asyncio
import os
from datetime import timedelta

import hwqueue
from hwqueue.worker import Worker, WorkerSettings

app = hwqueue.App()


@app.task("greet", queue="greetings")
async def greet(context: hwqueue.AsyncLeaseContext, name: str) -> str:
    return f"hello {name}, this is attempt {context.attempt}"


async def main() -> None:
    dsn = os.environ["HWQUEUE_DSN"]
    async with hwqueue.AsyncClient(dsn) as client:
        await client.create_queue("greetings")
        spawned = await greet.spawn(client, name="world")

        settings = WorkerSettings(dsn=dsn, queues=("greetings",), labels={"region": "us-east"})
        worker = Worker(app, settings)
        working = asyncio.create_task(worker.run())

        lease = await spawned.wait(timeout=timedelta(seconds=30))
        print(lease.state.value, greet.result_of(lease))

        worker.stop()
        await working


if __name__ == "__main__":
    asyncio.run(main())
