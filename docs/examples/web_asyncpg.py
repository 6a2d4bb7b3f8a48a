"""FastAPI on asyncpg: routes depend on a transaction, which commits before the answer is sent.

Run: HWQUEUE_DSN=$(hwqueue db url) python web_asyncpg.py
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated
from uuid import UUID

import asyncpg
import httpx
from fastapi import Depends, FastAPI, Request
from web_orders import asyncpg_arguments, send_invoice

import hwqueue

client = hwqueue.AsyncClient()  # connects when it is opened


@asynccontextmanager
async def lifespan(api: FastAPI) -> AsyncGenerator[None, None]:
    async with client, asyncpg.create_pool(**asyncpg_arguments()) as pool:
        api.state.pool = pool
        yield


async def transaction(request: Request) -> AsyncIterator[asyncpg.Connection]:
    async with request.app.state.pool.acquire() as connection, connection.transaction():
        yield connection


Transaction = Annotated[asyncpg.Connection, Depends(transaction, scope="function")]
api = FastAPI(lifespan=lifespan)


@api.post("/orders")
async def place_order(item: str, connection: Transaction) -> dict[str, UUID]:
    order_id = await connection.fetchval(
        "insert into example_asyncpg_order (item) values ($1) returning order_id", item
    )
    queue = hwqueue.AsyncClient.on(connection)
    return {"lease_id": (await send_invoice.spawn(queue, order_id=order_id)).lease_id}


@api.get("/leases/{lease_id}")
async def state_of(lease_id: UUID) -> dict[str, str]:
    return {"state": (await client.get_lease(lease_id)).state.value}


async def main() -> None:
    browser = httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://localhost")
    async with lifespan(api), browser:
        await client.create_queue("invoices")
        await api.state.pool.execute(
            "create table if not exists example_asyncpg_order"
            " (order_id int generated always as identity primary key, item text)"
        )
        answer = (await browser.post("/orders", params={"item": "one lamp"})).json()
        print("/orders", (await browser.get(f"/leases/{answer['lease_id']}")).json()["state"])


if __name__ == "__main__":
    asyncio.run(main())
