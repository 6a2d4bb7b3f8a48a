"""Progress that handlers report: shown while they run, and the last of it when they have ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from hwqueue.client import AsyncClient
from hwqueue.types import LeaseState
from tests.e2e.worker_support import BOUND_SECONDS, QUEUE, ended, worker


@pytest.fixture
async def client(dsn: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(dsn) as connected:
        await connected.create_queue(QUEUE)
        yield connected


@pytest.mark.parametrize("task", ["paint", "paint-sync", "paint-process"])
async def test_progress_is_shown_while_it_runs_and_after(
    client: AsyncClient, dsn: str, tmp_path: Path, task: str
) -> None:
    spawned = await client.spawn_lease(QUEUE, task, {"folder": str(tmp_path)})
    async with worker(dsn):
        async with asyncio.timeout(BOUND_SECONDS):
            while True:
                lease = await client.get_lease(spawned.lease_id)
                if lease.progress is not None and lease.progress.done == 40:
                    break
                await asyncio.sleep(0.01)
        assert lease.state is LeaseState.CLAIMED
        assert lease.progress.words == "40 %, 40 of 100: frame 40"
        (tmp_path / "go").touch()
        lease = await ended(client, spawned.lease_id)
    assert lease.state is LeaseState.COMPLETED
    assert lease.progress is not None
    assert (lease.progress.fraction, lease.progress.message) == (1, None)
