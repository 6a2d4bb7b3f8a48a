"""One suite for both clients: the sync one is called in a thread, so that tests can await it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, cast
from uuid import UUID, uuid4

import pytest

from hwqueue.client import AsyncClient, Client
from hwqueue.types import NodeSpec


class Awaitable:
    """A sync client whose methods can be awaited."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self._client, name)

        async def call(*args: Any, **options: Any) -> Any:
            return await asyncio.to_thread(method, *args, **options)

        return call


@pytest.fixture(params=["async", pytest.param("sync", marks=pytest.mark.thorough)])
def kind(request: pytest.FixtureRequest) -> str:
    """Which client the test is about."""
    return str(request.param)


@pytest.fixture
async def client(kind: str, dsn: str) -> AsyncIterator[AsyncClient]:
    """A client on the test's own database."""
    if kind == "async":
        async with AsyncClient(dsn, pool_size=2) as made:
            yield made
        return
    with Client(dsn, pool_size=2) as sync_client:
        yield cast(AsyncClient, Awaitable(sync_client))


@pytest.fixture
async def queue(client: AsyncClient) -> str:
    """A queue with the default policy."""
    await client.create_queue("work")
    return "work"


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
