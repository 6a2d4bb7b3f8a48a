"""What handlers report: progress and lines, shown while they run, and kept when they have ended."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from hwqueue.client import AsyncClient
from hwqueue.types import LeaseState
from tests.e2e.log_app import app
from tests.e2e.worker_support import BOUND_SECONDS, QUEUE, ended, worker

pytestmark = pytest.mark.usefixtures("way")


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


@pytest.mark.parametrize("task", ["talk", "talk-sync", "talk-process"])
async def test_lines_are_shown_while_it_runs_and_after(
    client: AsyncClient, dsn: str, tmp_path: Path, task: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    spawned = await client.spawn_lease(QUEUE, task, {"folder": str(tmp_path)})
    async with worker(dsn, app):
        async with asyncio.timeout(BOUND_SECONDS):
            while len(lines := await client.lease_logs(spawned.lease_id)) < 2:
                await asyncio.sleep(0.01)
        warning, long = lines
        assert (warning.line, warning.attempt, warning.dropped) == (1, 1, 0)
        assert (warning.level, warning.message) == ("warning", "texture missing")
        assert warning.fields == {"frame": 7}
        assert long.message.startswith("\\0\\ud800\x1bxxx")
        assert long.message.endswith(" ... (cut, 1000009 bytes)")
        assert len(long.message) == 4096
        assert long.fields == {"where": "/a\\0b", "ratio": "NaN", "big": 10**400}
        (tmp_path / "go").touch()
        lease = await ended(client, spawned.lease_id)
    assert lease.state is LeaseState.COMPLETED
    info, error = await client.lease_logs(spawned.lease_id, after=long.cursor)
    assert (info.level, info.message) == ("info", "three of 4")
    assert info.fields == {"logger": "shop", "order": 7}
    assert error.level == "error"
    assert error.message.startswith("gave up\nTraceback")
    assert error.message.endswith("OSError: disk is full")
    assert "not recorded" not in caplog.text


async def test_the_last_of_many_lines_are_kept(client: AsyncClient, dsn: str) -> None:
    spawned = await client.spawn_lease(QUEUE, "chatter", {"lines": 5000})
    async with worker(dsn, app):
        lease = await ended(client, spawned.lease_id)
    assert lease.state is LeaseState.COMPLETED
    lines = await client.lease_logs(spawned.lease_id)
    assert [line.message for line in lines] == [f"line {number}" for number in range(4001, 5001)]
    assert [line.dropped for line in lines] == [4000] + [0] * 999
