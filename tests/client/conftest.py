"""One suite for both clients: the sync one is called in a thread, so that tests can await it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from hwqueue.client import AsyncClient, Client
from hwqueue.types import NodeSpec


class Awaitable:
    """A sync client whose methods can be awaited; `inline`: in the test's own thread."""

    def __init__(self, client: Any, *, inline: bool = False) -> None:
        self._client = client
        self._inline = inline

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._client, name)

        async def call(*args: Any, **options: Any) -> Any:
            if self._inline:
                return method(*args, **options)
            return await asyncio.to_thread(method, *args, **options)

        return call

    def acting_as(self, actor: str) -> "Awaitable":
        return Awaitable(self._client.acting_as(actor))

    async def __aenter__(self) -> "Awaitable":
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def of_kind(kind: str, dsn: str, **options: Any) -> AsyncClient:
    """A client of this kind, which is not open yet."""
    if kind == "async":
        return AsyncClient(dsn, **options)
    return cast(AsyncClient, Awaitable(Client(dsn, **options)))


@pytest.fixture(params=["async", pytest.param("sync", marks=pytest.mark.thorough)])
def kind(request: pytest.FixtureRequest) -> str:
    """Which client the test is about."""
    return str(request.param)


@pytest.fixture
async def client(kind: str, dsn: str) -> AsyncIterator[AsyncClient]:
    """A client on the test's own database."""
    async with of_kind(kind, dsn, pool_size=2) as made:
        yield made


@pytest.fixture
async def queue(client: AsyncClient) -> str:
    """A queue with the default policy."""
    await client.create_queue("work")
    return "work"


@pytest.fixture
def producer(dsn: str) -> Iterator[Client]:
    """A sync client that no test awaits, with the same queue."""
    with Client(dsn) as made:
        made.create_queue("work")
        yield made


class Node:
    """A registered node that counts nothing."""

    def __init__(self, node_id: UUID, epoch: int) -> None:
        self.node_id = node_id
        self.epoch = epoch


@pytest.fixture
async def node(client: AsyncClient) -> Node:
    """A node that can run anything that asks for nothing."""
    node_id = uuid4()
    spec = NodeSpec(name="n1", instance_id="first", labels={"gpu": True, "zone": "a"})
    return Node(node_id, await client.register_node(node_id, spec))
