"""FastAPI: spawn in the transaction that writes the order, and commit before the answer is sent.

Run: HWQUEUE_DSN=$(hwqueue db url) python web_fastapi.py
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from typing import Annotated
from uuid import UUID

import httpx
from fastapi import Depends, FastAPI
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from web_orders import Base, Order, database, send_invoice

import hwqueue

engine = create_engine(database())
async_engine = create_async_engine(database())
client = hwqueue.AsyncClient()  # connects when it is opened


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncGenerator[None, None]:
    async with client:
        yield
    await async_engine.dispose()


api = FastAPI(lifespan=lifespan)


@api.post("/orders")
def place_order(item: str) -> dict[str, UUID]:
    with Session(engine) as session, session.begin():
        order = Order(item=item)
        session.add(order)
        session.flush()  # gives the order its id
        spawned = send_invoice.spawn(hwqueue.Client.on(session), order_id=order.order_id)
    return {"lease_id": spawned.lease_id}  # committed


@api.post("/async/orders")
async def place_order_async(item: str) -> dict[str, UUID]:
    async with AsyncSession(async_engine) as session, session.begin():
        order = Order(item=item)
        session.add(order)
        await session.flush()
        on_session = hwqueue.AsyncClient.on(session)
        spawned = await send_invoice.spawn(on_session, order_id=order.order_id)
    return {"lease_id": spawned.lease_id}


@api.get("/leases/{lease_id}")
async def state_of(lease_id: UUID) -> dict[str, str]:
    return {"state": (await client.get_lease(lease_id)).state.value}


def transaction() -> Iterator[Session]:
    with Session(engine) as session, session.begin():
        yield session


Transaction = Annotated[Session, Depends(transaction, scope="function")]


def queue_in(session: Transaction) -> hwqueue.Client:
    return hwqueue.Client.on(session)


Queue = Annotated[hwqueue.Client, Depends(queue_in, scope="function")]


@api.post("/dependent/orders")
def place_order_with(item: str, session: Transaction, queue: Queue) -> dict[str, UUID]:
    order = Order(item=item)
    session.add(order)
    session.flush()
    return {"lease_id": send_invoice.spawn(queue, order_id=order.order_id).lease_id}


async def main() -> None:
    Base.metadata.create_all(engine)
    with hwqueue.Client() as setup:
        setup.create_queue("invoices")
    browser = httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://localhost")
    async with lifespan(api), browser:
        for path in ("/orders", "/async/orders", "/dependent/orders"):
            answer = (await browser.post(path, params={"item": "one lamp"})).json()
            lease = (await browser.get(f"/leases/{answer['lease_id']}")).json()
            print(path, lease["state"])
    engine.dispose()


if __name__ == "__main__":
    asyncio.run(main())
