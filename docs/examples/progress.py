"""Show how far leases have come, and cancel one that runs.

Run: HWQUEUE_DSN=$(hwqueue db url) python progress.py
"""

import asyncio
import os
import time
from datetime import timedelta
from uuid import UUID

import hwqueue
from hwqueue import AsyncLeaseContext, LeaseContext

app = hwqueue.App()


@app.task("draw", queue="renders")
def draw(context: LeaseContext, frames: int) -> int:
    for frame in range(frames):
        context.raise_if_cancelled()
        paint(frame)
        context.progress(frame + 1, f"frame {frame}", total=frames)
    return frames


@app.task("fetch", queue="renders")
async def fetch(context: AsyncLeaseContext, pages: int) -> int:
    for page in range(pages):
        await download(page)
        context.progress(page + 1, total=pages)  # with or without await
    return pages


async def cancel(client: hwqueue.AsyncClient, lease_id: UUID) -> hwqueue.Lease:
    state = await client.cancel_lease(lease_id, reason="the film was withdrawn")
    print(state.value)  # cancelled; of one that runs: claimed
    return await client.wait(lease_id, timeout=timedelta(minutes=1))


def paint(frame: int) -> None:
    time.sleep(0.01)


async def download(page: int) -> None:
    await asyncio.sleep(0.01 if page == 0 else 3600)


async def main() -> None:
    dsn = os.environ["HWQUEUE_DSN"]
    async with hwqueue.AsyncClient(dsn) as client:
        await client.create_queue("renders")
        drawn = await draw.spawn(client, frames=3)
        fetched = await fetch.spawn(client, pages=4)
        later = await draw.with_options(delay=timedelta(hours=1)).spawn(client, frames=3)

        worker = hwqueue.Worker(app, hwqueue.WorkerSettings(dsn=dsn, queues=("renders",)))
        working = asyncio.create_task(worker.run())
        await drawn.wait(timeout=timedelta(minutes=1))
        if progress := (await client.get_lease(drawn.lease_id)).progress:
            print(progress.words)
        while (progress := (await client.get_lease(fetched.lease_id)).progress) is None:
            await asyncio.sleep(0.1)
        print(progress.words)
        for spawned in (fetched, later):
            lease = await cancel(client, spawned.lease_id)
            print(lease.task_name, lease.state.value)

        worker.stop()
        await working


if __name__ == "__main__":
    asyncio.run(main())
