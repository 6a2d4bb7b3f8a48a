"""An everywhere task in real workers: each runs it before what waits, also one that comes later."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from hwqueue.client import AsyncClient
from tests.e2e.worker_support import BOUND_SECONDS, QUEUE, worker


@pytest.fixture
async def client(dsn: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(dsn) as connected:
        await connected.create_queue(QUEUE)
        yield connected


async def test_workers_run_it_once_each(client: AsyncClient, dsn: str) -> None:
    often = timedelta(milliseconds=100)
    async with worker(dsn, name="node-1", reap_interval=often):
        spawned = await client.spawn_everywhere(QUEUE, "alone", mode="once")
        async with worker(dsn, name="node-2"), asyncio.timeout(BOUND_SECONDS):
            while (found := await client.get_everywhere(spawned.everywhere_id)).completed < 2:
                await asyncio.sleep(0.02)
    assert {lease.node for lease in found.leases} == {"node-1", "node-2"}
    results = [(await client.get_lease(lease.lease_id)).result for lease in found.leases]
    assert results == [True, True]  # of no gang
