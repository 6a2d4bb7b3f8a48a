"""What a worker does for the whole queue, beside its own leases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import pytest

from hwqueue import errors
from hwqueue.client import AsyncClient
from hwqueue.types import QueuePolicy
from tests.e2e.worker_support import BOUND_SECONDS, QUEUE, worker


@pytest.fixture
async def client(dsn: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(dsn) as client:
        await client.create_queue(QUEUE, policy=QueuePolicy(retain_completed=timedelta(0)))
        yield client


async def is_gone(client: AsyncClient, lease_id: object) -> bool:
    try:
        await client.get_lease(str(lease_id))
    except errors.LeaseNotFound:
        return True
    return False


async def test_finished_leases_go_by_themselves(client: AsyncClient, dsn: str) -> None:
    spawned = await client.spawn_lease(QUEUE, "add", {"a": 1, "b": 2})
    often = {"prune_interval": timedelta(seconds=1), "reap_interval": timedelta(seconds=0.1)}
    async with worker(dsn, **often), asyncio.timeout(BOUND_SECONDS):
        while not await is_gone(client, spawned.lease_id):
            await asyncio.sleep(0.05)
