"""A producer cancels a running lease and leaves its transaction open: the worker goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import psycopg
import pytest

from hwqueue.client import AsyncClient
from hwqueue.types import LeaseState
from hwqueue.worker import session
from tests.e2e.worker_support import QUEUE, ended, until, worker

_CANCEL = "select hwqueue.cancel_lease(p_lease => %s)"


@pytest.fixture
async def client(dsn: str) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(dsn) as connected:
        await connected.create_queue(QUEUE)
        yield connected


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try busy claims again at once."""
    monkeypatch.setattr(session, "_BUSY_WAIT_SECONDS", 0.05)


@pytest.mark.parametrize("stops", [False, True], ids=["working", "stopping"])
async def test_a_result_is_kept_until_its_claim_is_free(
    client: AsyncClient,
    dsn: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    stops: bool,
) -> None:
    """Heartbeats keep the claim meanwhile, and other leases are run and settled."""
    spawned = await client.spawn_lease(QUEUE, "wait-async", {"folder": str(tmp_path)})

    def told() -> int:
        return sum("settling it later" in record.message for record in caplog.records)

    with psycopg.connect(dsn) as producer:
        async with worker(dsn) as working:
            await until((tmp_path / "started").exists)
            producer.execute(_CANCEL, [spawned.lease_id])
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
