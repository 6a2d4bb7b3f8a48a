"""Workers over HTTP: what only they meet. What all workers do, the other files try with both."""

from __future__ import annotations

import asyncio
import subprocess
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from hwqueue.client import AsyncClient, Client
from hwqueue.errors import HwqueueError
from hwqueue.types import LeaseState, QueuePolicy
from hwqueue.worker.gateway import Gateway
from hwqueue.worker.signals import SUPERSEDED
from tests.e2e.conftest import Cli
from tests.e2e.programs import HWQUEUE
from tests.e2e.steps_app import app as steps_app
from tests.e2e.worker_support import (
    AT_ONCE,
    QUEUE,
    RARELY,
    WAY,
    ended,
    is_in,
    until,
    wait_until,
    worker,
    worker_process,
    works,
)

pytestmark = [
    pytest.mark.usefixtures("way"),
    pytest.mark.parametrize("way", ["http"], indirect=True),
]


@pytest.fixture
def policy() -> QueuePolicy:
    return QueuePolicy(claim_timeout=timedelta(hours=1), retry=AT_ONCE)


class Loses:
    """The answers of calls that are lost, each once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **routes: Any) -> None:
        self.left = routes
        ask = Gateway._ask

        async def lossy(gateway: Gateway, method: str, path: str, **request: Any) -> dict[str, Any]:
            answer = await ask(gateway, method, path, **request)
            if self.left.get(path, lambda _answer: False)(answer):
                del self.left[path]
                raise HwqueueError("the answer is lost", retryable=True)
            return answer

        monkeypatch.setattr(Gateway, "_ask", lossy)


def grants(answer: dict[str, Any]) -> bool:
    return any(item["kind"] == "claimed" for item in answer["items"])


def settles(answer: dict[str, Any]) -> bool:
    return any(item["kind"] == "settled" for item in answer["items"])


async def test_a_lease_whose_grant_was_lost_is_handed_back_at_once(
    client: AsyncClient, dsn: str, *, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its claim would live for an hour."""
    lost = Loses(monkeypatch, settle=grants)
    spawned = await client.spawn_lease(QUEUE, "add", {"a": 1, "b": 2})
    async with worker(dsn, **RARELY):
        lease = await ended(client, spawned.lease_id)
    assert (lease.result, [one.outcome for one in lease.attempts], lost.left) == (3, ["released"], {})
    assert "1 leases were granted by answers that were lost" in caplog.text


async def test_other_answers_that_are_lost_cost_nothing(
    client: AsyncClient, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = Loses(monkeypatch, **dict.fromkeys(("register", "heartbeat", "compare"), lambda _answer: True))
    async with worker(dsn):
        await until(lambda: lost.left.keys() <= {"compare"})
        await works(client)


async def test_a_settlement_whose_answer_was_lost_is_sent_again(
    client: AsyncClient, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = Loses(monkeypatch, settle=settles)
    spawned = await client.spawn_lease(QUEUE, "add", {"a": 1, "b": 2})
    async with worker(dsn):
        lease = await ended(client, spawned.lease_id)
        await until(lambda: not lost.left)
        await works(client)
    assert (lease.result, lease.attempt) == (3, 1)


async def test_what_a_handler_did_is_done_once_although_answers_are_lost(
    client: AsyncClient, dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each of its calls one: the server has done it."""
    routes = ("checkpoints", "saved", "signal", "logs")
    lost = Loses(monkeypatch, **dict.fromkeys(routes, lambda _answer: True), settle=settles)
    given = {"folder": str(tmp_path)}
    flaky, order = [(await client.spawn_lease(QUEUE, task, given)).lease_id for task in ("flaky", "order")]
    async with worker(dsn, steps_app):
        while (await client.get_lease(order)).state is not LeaseState.SCHEDULED:
            await asyncio.sleep(0.02)
        await client.signal_lease(order, "packed", {"by": "ann"})
        found = [await ended(client, lease) for lease in (flaky, order)]
        assert [lease.attempt for lease in found] == [1, 1]
    assert found[1].result == {"paid": "charge", "packed": {"by": "ann"}, "again": "again"}
    assert sorted((tmp_path / "lines").read_text().split()) == ["again", *["busy"] * 3, "charge"]
    assert [one.fields and one.fields["calls"] for one in await client.lease_logs(flaky)] == [1, 2]
    assert lost.left == {}


def test_a_revoked_token_ends_the_worker(producer: Client, dsn: str, tmp_path: Path) -> None:
    lease_id = producer.spawn_lease(QUEUE, "wait-async", {"folder": str(tmp_path)}).lease_id
    with worker_process(dsn) as process:
        wait_until((tmp_path / "started").exists)
        producer.revoke_token("workers")
        assert "revoked or expired; hint: put another token" in process.communicate(timeout=30)[1]
        assert process.returncode == SUPERSEDED
    assert producer.get_lease(lease_id).state is LeaseState.CLAIMED  # until its timeout


def test_the_command_line(producer: Client, cli: Cli, tmp_path: Path) -> None:
    """A token for its node alone; without a word of a database."""
    secret = cli("token", "create", "edge", "--role", "worker", "--node", "edge-*", "--bare").stdout.strip()
    (tmp_path / "token").write_text(secret)
    (tmp_path / "tasks.py").write_text(
        "import hwqueue\napp = hwqueue.App()\n\n"
        "@app.task('add', queue='work')\ndef add(a: int, b: int) -> int: return a + b\n"
    )
    lease_id = producer.spawn_lease(QUEUE, "add", {"a": 1, "b": 2}).lease_id
    line = [*HWQUEUE, "worker", "run", "--app", "tasks:app", "--no-detect", "--url", WAY.over_http["url"]]
    line += ["--token-file", str(tmp_path / "token"), "--name"]
    with subprocess.Popen([*line, "edge-1"], cwd=tmp_path) as process:
        wait_until(is_in(producer, lease_id, LeaseState.COMPLETED))
        process.kill()
    refused = subprocess.run(
        [*line, "other"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert "is not for node" in refused.stderr
    assert refused.returncode == 1
