"""Durable steps of handlers in a real worker: threads, the event loop and child processes."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from uuid import UUID

import psycopg
import pytest

from hwqueue.client import AsyncClient
from hwqueue.testing import Clock
from hwqueue.types import Lease, LeaseState, QueuePolicy
from tests.e2e.steps_app import HOUR, app
from tests.e2e.worker_support import (
    AT_ONCE,
    BOUND_SECONDS,
    QUEUE,
    WAY,
    ended,
    run_one,
    until,
    worker,
    worker_process,
)

ORDERS = ["order", "order-async", "order-process", "order-async-process"]

pytestmark = pytest.mark.usefixtures("way")


@pytest.fixture
def policy() -> QueuePolicy:
    return QueuePolicy(retry=AT_ONCE)


def lines(folder: Path) -> list[str]:
    noted = folder / "lines"
    return noted.read_text().split() if noted.exists() else []


async def in_state(client: AsyncClient, lease_id: UUID, state: LeaseState) -> Lease:
    """The lease, once it is in a state."""
    async with asyncio.timeout(BOUND_SECONDS):
        while (lease := await client.get_lease(lease_id)).state is not state:
            await asyncio.sleep(0.02)
    return lease


@pytest.mark.parametrize("task", ORDERS)
async def test_a_handler_goes_on_behind_its_steps(
    client: AsyncClient, dsn: str, tmp_path: Path, task: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "hwqueue.worker")
    lease_id = (await client.spawn_lease(QUEUE, task, {"folder": str(tmp_path)})).lease_id
    async with worker(dsn, app):
        waiting = await in_state(client, lease_id, LeaseState.SCHEDULED)
        assert waiting.placement["prefer"], "the node that it was on"
        sent = await client.signal_lease(lease_id, "packed", {"by": "ann"}, key="k")
        assert sent.created
        lease = await ended(client, lease_id)
    assert lease.result == {"paid": "charge", "packed": {"by": "ann"}, "again": "again"}
    assert lines(tmp_path) == ["charge", "again"]
    assert lease.attempt == 1
    assert [attempt.outcome for attempt in lease.attempts] == ["released"]
    [said] = [line for line in caplog.messages if "suspended" in line]
    assert said.endswith("is suspended, waits for signal 'packed', 1 h at most")
    names = {one.name for one in await client.lease_checkpoints(lease_id)}
    assert names == {"charge", "charge#2", "packed"}


@pytest.mark.parametrize("task", ["flaky", "flaky-process", "flaky-async", "flaky-async-process"])
async def test_a_step_is_called_again_within_its_attempt(
    client: AsyncClient, dsn: str, tmp_path: Path, task: str
) -> None:
    lease = await run_one(client, dsn, task, {"folder": str(tmp_path)}, of=app)
    assert (lease.result, lease.attempt, lease.attempts) == ("done", 1, ())
    assert lines(tmp_path) == ["busy"] * 3
    told = await client.lease_logs(lease.lease_id)
    assert [(one.level, one.fields) for one in told] == [
        ("warning", {"step": "ask", "calls": 1}),
        ("warning", {"step": "ask", "calls": 2}),
    ]
    assert told[0].message.endswith("ConnectionError: busy")


@pytest.mark.parametrize("task", ["order", "order-async-process"])
async def test_a_wait_times_out(
    client: AsyncClient, dsn: str, clock: Clock, tmp_path: Path, task: str
) -> None:
    lease_id = (await client.spawn_lease(QUEUE, task, {"folder": str(tmp_path)})).lease_id
    async with worker(dsn, app):
        await in_state(client, lease_id, LeaseState.SCHEDULED)
        clock.advance(HOUR)
        lease = await ended(client, lease_id)
    assert lease.result == {"paid": "charge", "packed": "TimeoutError", "again": "again"}
    assert lines(tmp_path) == ["charge", "TimeoutError", "again"]


async def test_a_signal_that_is_there_costs_no_suspension(
    client: AsyncClient, dsn: str, tmp_path: Path
) -> None:
    lease_id = (await client.spawn_lease(QUEUE, "order", {"folder": str(tmp_path)})).lease_id
    await client.signal_lease(lease_id, "packed", 7)
    async with worker(dsn, app):
        lease = await ended(client, lease_id)
    assert isinstance(lease.result, dict)
    assert (lease.result["packed"], lease.attempts) == (7, ())


async def test_a_long_sleep_frees_the_slot(
    client: AsyncClient, dsn: str, clock: Clock, tmp_path: Path
) -> None:
    lease_id = (await client.spawn_lease(QUEUE, "nap", {"folder": str(tmp_path)})).lease_id
    async with worker(dsn, app, concurrency=1):
        await in_state(client, lease_id, LeaseState.SCHEDULED)
        other = await client.spawn_lease(QUEUE, "order", {"folder": str(tmp_path)})
        await in_state(client, other.lease_id, LeaseState.SCHEDULED)
        clock.advance(HOUR)
        assert (await ended(client, lease_id)).state is LeaseState.COMPLETED
    assert [line for line in lines(tmp_path) if line.endswith("s")] == ["begins", "begins", "ends"]
    names = {one.name for one in await client.lease_checkpoints(lease_id)}
    assert names == {"sleep", "sleep#2"}


async def test_a_killed_worker_leaves_what_was_saved(client: AsyncClient, dsn: str, tmp_path: Path) -> None:
    """The next attempt does not run the first step again."""
    lease_id = (await client.spawn_lease(QUEUE, "stops-between", {"folder": str(tmp_path)})).lease_id
    with worker_process(dsn, of="steps_app"):
        await until(lambda: "between" in lines(tmp_path))
    assert lines(tmp_path) == ["first", "between"]
    (tmp_path / "go").touch()
    async with worker(dsn, app):
        lease = await ended(client, lease_id)
    assert (lease.state, lease.attempt) == (LeaseState.COMPLETED, 2)
    assert lines(tmp_path) == ["first", "between", "between", "second"]


@pytest.mark.parametrize("task", ["book", "book-async"])
@pytest.mark.parametrize("fails", [False, True])
async def test_effect_and_checkpoint_commit_together(
    client: AsyncClient, dsn: str, conn: psycopg.Connection, task: str, fails: bool
) -> None:
    conn.execute("create table booking (lease text)")
    lease = await run_one(client, dsn, task, {"fails": fails}, of=app)
    if WAY.over_http:
        assert "has no connection here: pass one of yours" in lease.error["message"]
        return
    assert lease.result is fails, "the second run finds it done"
    assert conn.execute("select lease from booking").fetchall() == [(str(lease.lease_id),)]
