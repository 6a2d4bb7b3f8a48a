"""Keep what a handler logs with its attempt, and read it.

Run: HWQUEUE_DSN=$(hwqueue db url) python log_lines.py
"""

import asyncio
import logging
import os
from datetime import timedelta

import hwqueue
from hwqueue import LeaseContext

app = hwqueue.App(keep_logs="warning")


@app.task("bake", queue="renders")
def bake(context: LeaseContext, texture: str) -> None:
    context.log("baking", texture=texture)
    if not texture.endswith(".exr"):
        context.log("no alpha channel", "warning", texture=texture)
    logging.getLogger("codec").warning("slow path")  # kept, too: keep_logs


async def main() -> None:
    dsn = os.environ["HWQUEUE_DSN"]
    async with hwqueue.AsyncClient(dsn) as client:
        await client.create_queue("renders")
        spawned = await bake.spawn(client, texture="sky.jpg")
        worker = hwqueue.Worker(app, hwqueue.WorkerSettings(dsn=dsn, queues=("renders",)))
        working = asyncio.create_task(worker.run())
        await spawned.wait(timeout=timedelta(minutes=1))
        for line in await client.lease_logs(spawned.lease_id):
            print(line.level, line.message, line.fields)
        worker.stop()
        await working


if __name__ == "__main__":
    asyncio.run(main())
