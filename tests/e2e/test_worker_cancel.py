"""Stopping one running lease: cancelled, preempted or lost, in each kind of handler."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import psycopg
import pytest

from hwqueue.client import AsyncClient
from hwqueue.testing import Clock
from hwqueue.types import Claim, Heartbeat, LeaseState, Taint
from hwqueue.worker import session
from hwqueue.worker.heartbeat import HeartbeatLoop
from tests.e2e.worker_support import BOUND_SECONDS, QUEUE, RARELY, ended, until, worker, works

pytestmark = pytest.mark.usefixtures("way")

LISTENING = (
    "select count(*) from pg_stat_activity where pid <> pg_backend_pid()"
    " and datname = current_database() and query ~* '^listen hwqueue$'"
)
KINDS = ["wait-async", "wait-sync", "wait-process"]


@pytest.mark.parametrize("task", KINDS)
async def test_cancelling_a_lease_reaches_its_handler(
    client: AsyncClient, dsn: str, tmp_path: Path, task: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "hwqueue.worker")
    spawned = await client.spawn_lease(QUEUE, task, {"folder": str(tmp_path)})
    async with worker(dsn):
        await until((tmp_path / "started").exists)
        assert await client.cancel_lease(spawned.lease_id) is LeaseState.CLAIMED
        lease = await ended(client, spawned.lease_id)
    assert lease.state is LeaseState.CANCELLED
    assert (tmp_path / "cancelled").exists()
    [told] = [each for each in caplog.records if "is cancelled: its handler was stopped" in each.message]
    assert (told.levelno, vars(told)["task"]) == (logging.INFO, task)


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


STOPS: dict[str, Callable[[AsyncClient, UUID, UUID], Awaitable[object]]] = {
    "cancelled": lambda client, lease_id, _: client.cancel_lease(lease_id),
    "drained": lambda client, _, node_id: client.drain_node(node_id, deadline=timedelta(0)),
    "tainted": lambda client, _, node_id: client.taint_node(node_id, Taint(key="k", effect="no_execute")),
    "deregistered": lambda client, _, node_id: client.deregister_node(node_id),
}


@pytest.mark.parametrize("how", STOPS)
async def test_a_stop_reaches_a_worker_that_neither_polls_nor_heartbeats(
    client: AsyncClient, dsn: str, tmp_path: Path, how: str
) -> None:
    """The next poll and the next heartbeat are an hour away: only a notification tells it."""
    folder = {"folder": str(tmp_path)}
    lease = await client.spawn_lease(QUEUE, "wait-async", folder, claim_timeout=timedelta(hours=9))
    async with worker(dsn, listen="auto", poll_interval=timedelta(hours=1), **RARELY):
        await until((tmp_path / "started").exists)
        async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
            async with asyncio.timeout(BOUND_SECONDS):
                while (await (await connection.execute(LISTENING)).fetchone()) != (1,):
                    await asyncio.sleep(0.01)
        [node] = await client.list_nodes()
        await STOPS[how](client, lease.lease_id, node.node_id)
        await until((tmp_path / "cancelled").exists)


@pytest.mark.parametrize("way", ["login"], indirect=True)
async def test_a_stop_that_comes_during_a_heartbeat_asks_for_another_one() -> None:
    """The one under way may have read the claims before they were to stop."""
    beats = asyncio.Queue[None]()

    class Session:
        async def heartbeat(self, _claims: object, _longest_wait: float) -> list[Heartbeat]:
            if beats.qsize() == 0:
                loop.ask()
            beats.put_nowait(None)
            return []

    class Idle:
        held: tuple[Claim, ...] = ()

        def stop_claims(self, _reasons: object) -> None: ...

    loop = HeartbeatLoop(cast(Any, Session()), cast(Any, Idle()), timedelta(hours=1))
    loop.ask()
    beating = asyncio.create_task(loop.run())
    await until(lambda: beats.qsize() == 2)
    beating.cancel()


async def test_a_deregistered_node_registers_again_and_says_so(
    client: AsyncClient, dsn: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await client.spawn_lease(QUEUE, "wait-async", {"folder": str(tmp_path)}, max_attempts=1)
    async with worker(dsn):
        await until((tmp_path / "started").exists)
        [node] = await client.list_nodes()
        await client.deregister_node(node.node_id)
        await until((tmp_path / "cancelled").exists)  # its claim ended with the registration
        await works(client)
    assert "was deregistered; registering it again" in caplog.text


@pytest.mark.parametrize("stops", [False, True], ids=["working", "stopping"])
async def test_a_result_is_kept_until_its_claim_is_free(
    client: AsyncClient,
    dsn: str,
    *,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    stops: bool,
) -> None:
    """A producer cancels it and leaves its transaction open: the worker goes on with other leases."""
    monkeypatch.setattr(session, "_BUSY_WAIT_SECONDS", 0.05)
    spawned = await client.spawn_lease(QUEUE, "wait-async", {"folder": str(tmp_path)})

    def told() -> int:
        return sum("settling it later" in record.message for record in caplog.records)

    with psycopg.connect(dsn) as producer:
        async with worker(dsn) as working:
            await until((tmp_path / "started").exists)
            producer.execute("select hwqueue.cancel_lease(p_lease => %s)", [spawned.lease_id])
            (tmp_path / "go").touch()
            await until(lambda: told() >= 2)
            if stops:
                working.stop()
            else:
                other = await client.spawn_lease(QUEUE, "wait-async", {"folder": str(tmp_path)})
                assert (await ended(client, other.lease_id)).state is LeaseState.COMPLETED
            producer.rollback()
            lease = await ended(client, spawned.lease_id)
    assert (lease.state, lease.result, lease.attempt) == (LeaseState.COMPLETED, "went", 1)
