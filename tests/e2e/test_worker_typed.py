"""Typed tasks: arguments, dependencies and results, in the loop, in threads and in processes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from hwqueue.client import AsyncClient
from hwqueue.types import LeaseState, QueuePolicy, RetryPolicy
from tests.e2e import worker_app
from tests.e2e.worker_app import Picture, Size
from tests.e2e.worker_support import QUEUE, ended, worker

AT = datetime(2030, 1, 2, tzinfo=UTC)
KINDS = [
    worker_app.draw,
    worker_app.draw_async,
    worker_app.draw_process,
    worker_app.draw_process_async,
]


@pytest.fixture
async def client(dsn: str) -> AsyncIterator[AsyncClient]:
    at_once = RetryPolicy(kind="fixed", base=timedelta(0))
    async with AsyncClient(dsn) as connected:
        await connected.create_queue(QUEUE, policy=QueuePolicy(retry=at_once))
        yield connected


@pytest.mark.parametrize("draw", KINDS, ids=lambda task: str(task.name))
async def test_arguments_and_results_keep_their_types(
    client: AsyncClient, dsn: str, tmp_path: Path, draw: Any
) -> None:
    spawned = await draw.spawn(client, str(tmp_path), at=AT, size=Size.LARGE)
    async with worker(dsn):
        lease = await ended(client, spawned.lease_id)
    assert lease.state is LeaseState.COMPLETED, lease.error
    assert lease.params == {"folder": str(tmp_path), "at": AT.isoformat(), "size": "large"}
    assert draw.result_of(lease) == Picture(f"{tmp_path}/1", Size.LARGE, AT, lease.lease_id)
    written = (tmp_path / str(lease.lease_id)).read_text()
    assert written.splitlines() == [str(tmp_path), "large"]  # by a dependency, after the handler


@pytest.mark.parametrize("draw", KINDS, ids=lambda task: str(task.name))
async def test_params_that_do_not_fit_fail_at_once(client: AsyncClient, dsn: str, draw: Any) -> None:
    params = {"folder": "a", "at": AT.isoformat(), "size": "huge"}
    spawned = await client.spawn_lease(QUEUE, draw.name, params)
    async with worker(dsn):
        lease = await ended(client, spawned.lease_id)
    assert (lease.state, lease.attempt) == (LeaseState.FAILED, 1)
    assert lease.error == {
        "type": "BadParams",
        "message": 'params.size must be one of "small", "large", not "huge"',
    }


async def test_a_batch_has_the_defaults_of_the_task(client: AsyncClient, dsn: str, tmp_path: Path) -> None:
    draw, folder = worker_app.draw, str(tmp_path)
    urgent = draw.with_options(priority=9)
    spawned = await draw.spawn_many(
        client, [{"folder": folder, "at": AT}, urgent.spec(folder, AT, Size.LARGE)]
    )
    async with worker(dsn):
        leases = [await ended(client, one.lease_id) for one in spawned]
    assert [draw.result_of(lease).size for lease in leases] == [Size.SMALL, Size.LARGE]
    assert [lease.priority for lease in leases] == [7, 9]
    assert [lease.labels for lease in leases] == [{"kind": "picture"}] * 2


@pytest.mark.parametrize(
    ("task", "attempts"),
    [
        (worker_app.picky_about_errors, 2),
        (worker_app.picky_process, 1),
        (worker_app.picky_thread, 1),
    ],
    ids=lambda value: getattr(value, "name", None),
)
async def test_exceptions_that_are_not_retried_end_the_lease(
    client: AsyncClient, dsn: str, task: Any, attempts: int
) -> None:
    spawned = await task.spawn(client)
    async with worker(dsn):
        lease = await ended(client, spawned.lease_id)
    assert (lease.state, lease.attempt) == (LeaseState.FAILED, attempts)
    assert (lease.error["type"], lease.error["message"]) == ("ValueError", "for good")
