"""Stopping one running lease: cancelled, preempted or lost, in each kind of handler."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

from hwqueue.client import AsyncClient
from hwqueue.testing import Clock
from hwqueue.types import LeaseState
from tests.e2e.worker_support import QUEUE, ended, until, worker

KINDS = ["wait-async", "wait-sync", "wait-process"]


@pytest.fixture
async def client(dsn: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(dsn) as connected:
        await connected.create_queue(QUEUE)
        yield connected


@pytest.mark.parametrize("task", KINDS)
async def test_cancelling_a_lease_reaches_its_handler(
    client: AsyncClient, dsn: str, tmp_path: Path, task: str
) -> None:
    spawned = await client.spawn_lease(QUEUE, task, {"folder": str(tmp_path)})
    async with worker(dsn):
        await until((tmp_path / "started").exists)
        assert await client.cancel_lease(spawned.lease_id) is LeaseState.CLAIMED
        lease = await ended(client, spawned.lease_id)
    assert lease.state is LeaseState.CANCELLED
    assert (tmp_path / "cancelled").exists()


@pytest.mark.parametrize("task", KINDS)
async def test_draining_a_node_hands_its_leases_back(
    client: AsyncClient, dsn: str, tmp_path: Path, task: str
) -> None:
    spawned = await client.spawn_lease(QUEUE, task, {"folder": str(tmp_path)})
    async with worker(dsn):
        await until((tmp_path / "started").exists)
        [node] = await client.list_nodes()
        await client.drain_node(node.node_id, deadline=timedelta(0))
        await until((tmp_path / "cancelled").exists)

        (tmp_path / "started").unlink()
        (tmp_path / "go").touch()
        async with worker(dsn, name="node-2"):
            lease = await ended(client, spawned.lease_id)
    assert (lease.state, lease.result, lease.attempt) == (LeaseState.COMPLETED, "went", 1)
    assert [attempt.outcome for attempt in lease.attempts] == ["released"]


@pytest.mark.parametrize("task", KINDS)
async def test_a_lost_claim_stops_its_handler_and_is_not_settled(
    client: AsyncClient,
    dsn: str,
    *,
    clock: Clock,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    task: str,
) -> None:
    folder = {"folder": str(tmp_path)}
    spawned = await client.spawn_lease(QUEUE, task, folder, max_attempts=1)
    async with worker(dsn):
        await until((tmp_path / "started").exists)
        expired = 0
        while not expired:  # a heartbeat may come between the two calls
            clock.advance(timedelta(minutes=2))
            expired = (await client.reap()).expired
        await until((tmp_path / "cancelled").exists)
        await until(lambda: "its outcome is dropped" in caplog.text)
    assert "settled too late" not in caplog.text
    lease = await client.get_lease(spawned.lease_id)
    assert lease.state is LeaseState.FAILED
    assert [attempt.outcome for attempt in lease.attempts] == ["expired"]


async def test_claims_that_end_soon_are_heartbeated_sooner(
    client: AsyncClient, dsn: str, tmp_path: Path
) -> None:
    folder, soon = {"folder": str(tmp_path)}, timedelta(seconds=4)
    spawned = await client.spawn_lease(QUEUE, "wait-async", folder, claim_timeout=soon)
    rarely = {"heartbeat_interval": timedelta(hours=1), "heartbeat_timeout": timedelta(hours=2)}
    async with worker(dsn, **rarely):
        await until((tmp_path / "started").exists)
        first = (await client.get_lease(spawned.lease_id)).expires_at
        async with asyncio.timeout(30):
            while (await client.get_lease(spawned.lease_id)).expires_at == first:
                await asyncio.sleep(0.02)
        (tmp_path / "go").touch()
        assert (await ended(client, spawned.lease_id)).attempt == 1


async def test_a_deregistered_node_registers_again_and_says_so(
    client: AsyncClient, dsn: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await client.spawn_lease(QUEUE, "wait-async", {"folder": str(tmp_path)}, max_attempts=1)
    async with worker(dsn):
        await until((tmp_path / "started").exists)
        [node] = await client.list_nodes()
        await client.deregister_node(node.node_id)
        await until((tmp_path / "cancelled").exists)  # its claim ended with the registration
        spawned = await client.spawn_lease(QUEUE, "add", {"a": 1, "b": 2})
        assert (await ended(client, spawned.lease_id)).result == 3
    assert "was deregistered; registering it again" in caplog.text
