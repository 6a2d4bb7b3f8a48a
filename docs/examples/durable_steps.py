"""Charge a card once, wait for a parcel without a slot, and go on where the handler was.

Run: HWQUEUE_DSN=$(hwqueue db url) python durable_steps.py
"""

import asyncio
import os
from datetime import timedelta
from typing import Any

import hwqueue
from hwqueue import LeaseContext, LeaseState

app = hwqueue.App()


def charge(card: str, amount: int) -> dict[str, Any]:
    print(f"charges {card}")
    return {"receipt": f"{card}-{amount}"}


@app.task("order", queue="orders")
def order(context: LeaseContext, card: str, amount: int) -> dict[str, object]:
    print("runs")
    payment = context.step("charge", charge, card, amount)
    parcel = context.wait_for("packed", timeout=timedelta(days=3))
    return {**payment, "parcel": parcel}


async def main() -> None:
    dsn = os.environ["HWQUEUE_DSN"]
    async with hwqueue.AsyncClient(dsn) as client:
        await client.create_queue("orders")
        spawned = await order.spawn(client, card="visa", amount=30)
        settings = hwqueue.WorkerSettings(dsn=dsn, queues=("orders",))
        worker = hwqueue.Worker(app, settings)
        working = asyncio.create_task(worker.run())
        while (await client.get_lease(spawned.lease_id)).state is not LeaseState.SCHEDULED:
            await asyncio.sleep(0.05)
        print((await client.explain_lease(spawned.lease_id)).headline.partition(",")[0])
        await client.signal_lease(spawned.lease_id, "packed", 4711, key="warehouse-1")
        print((await spawned.wait(timeout=timedelta(minutes=1))).result)
        worker.stop()
        await working


if __name__ == "__main__":
    asyncio.run(main())
