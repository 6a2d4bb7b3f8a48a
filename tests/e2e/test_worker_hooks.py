"""Middleware and hooks in a running worker."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from hwqueue import App, AsyncClient, Claim, QueuePolicy, Worker
from hwqueue.worker.session import NodeSession
from tests.e2e import middleware_app
from tests.e2e.worker_support import AT_ONCE, QUEUE, ended, settings, until, worker

pytestmark = [pytest.mark.embedded, pytest.mark.usefixtures("way")]


@pytest.fixture
def policy() -> QueuePolicy:
    return QueuePolicy(max_attempts=2, retry=AT_ONCE)


@pytest.mark.parametrize("task", ["sync", "async", "process", "process-async"])
async def test_middleware_is_around_every_handler(client: AsyncClient, dsn: str, task: str) -> None:
    spawned = await client.spawn_lease(QUEUE, task, 4)
    async with worker(dsn, middleware_app.app):
        assert (await ended(client, spawned.lease_id)).result == 9


async def test_middleware_that_a_child_process_does_not_have_is_an_error(
    client: AsyncClient, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(middleware_app.app._middleware._functions, False, [])
    middleware_app.app.middleware(lambda call_next, context: call_next(context))
    spawned = await client.spawn_lease(QUEUE, "process", 4, max_attempts=1)
    async with worker(dsn, middleware_app.app):
        lease = await ended(client, spawned.lease_id)
    assert lease.error["type"] == "hwqueue.errors.ConfigError"
    assert "<lambda>) around in_process, its child process (doubles):" in lease.error["message"]


async def test_hooks_are_told_of_failures_and_dead_leases(client: AsyncClient, dsn: str) -> None:
    app, said = App(), []

    @app.on_failure
    async def failed(claim: Claim, error: dict[str, Any]) -> None:
        said.append(("failed", claim.lease_id, claim.attempt, error["message"]))

    @app.on_dead
    def dead(claim: Claim, error: dict[str, Any]) -> None:
        said.append(("dead", claim.lease_id, claim.attempt, error["type"]))

    @app.task("fail")
    def fail(params: Any) -> None:
        raise RuntimeError("smtp down")

    @app.task("well")
    def well(params: Any) -> None: ...

    await client.spawn_lease(QUEUE, "well")
    lease_id = (await client.spawn_lease(QUEUE, "fail")).lease_id
    async with worker(dsn, app):
        await until(lambda: len(said) == 3)
    assert said == [
        ("failed", lease_id, 1, "smtp down"),
        ("failed", lease_id, 2, "smtp down"),
        ("dead", lease_id, 2, "RuntimeError"),
    ]


async def test_hooks_hear_of_leases_that_died_without_a_handler(
    client: AsyncClient, dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    """One that could run nowhere: its deadline passes, and reap fails it."""
    app, said = App(), []

    @app.on_dead
    async def dead(claim: Claim, error: dict[str, Any]) -> None:
        said.append((claim.lease_id, claim.attempt, claim.params, error["type"], error["message"]))

    @app.task("render")
    def render(params: Any) -> None: ...

    soon = datetime.now(UTC) + timedelta(milliseconds=300)
    spawned = await client.spawn_lease(
        QUEUE, "render", {"n": 1}, affinity_tags={"nowhere": True}, deadline=soon
    )
    async with worker(dsn, app, reap_interval=timedelta(milliseconds=100)):
        await until(lambda: bool(said))
    why = "its deadline passed before it was claimed"
    assert said == [(spawned.lease_id, 0, {"n": 1}, "deadline_exceeded", why)]
    assert f"lease {spawned.lease_id} of task render is dead: {why}" in caplog.text


async def test_a_worker_without_hooks_for_dead_leases_takes_none(
    client: AsyncClient, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It makes no call, and nothing is kept for it."""
    taken: list[Any] = []
    monkeypatch.setattr(NodeSession, "take_deaths", lambda *arguments: taken.append(arguments))
    app = App()
    app.on_failure(lambda claim, error: None)
    app.task("render")(lambda params: None)
    soon = datetime.now(UTC) + timedelta(milliseconds=300)
    spawned = await client.spawn_lease(QUEUE, "render", affinity_tags={"nowhere": True}, deadline=soon)
    async with worker(dsn, app, reap_interval=timedelta(milliseconds=100)):
        await ended(client, spawned.lease_id)
    assert taken == []


async def test_a_stop_does_not_wait_for_a_hook_of_the_start(dsn: str) -> None:
    app, began, go, said = App(), threading.Event(), threading.Event(), []

    @app.on_start
    def slow() -> None:
        began.set()
        go.wait(30)

    app.on_stop(lambda: said.append("stopped"))
    app.task("work")(lambda params: None)
    started = Worker(app, settings(dsn))
    working = asyncio.create_task(started.run())
    await until(began.is_set)
    started.stop()
    assert await asyncio.wait_for(working, 30) == 0
    assert (started.has_leftovers, said) == (True, ["stopped"])
    go.set()


async def test_a_hook_of_the_stop_has_a_bounded_time(
    client: AsyncClient, dsn: str, *, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("hwqueue.worker.runtime._STOP_HOOKS_SECONDS", 0.01)
    app = App()

    @app.on_stop
    async def slow() -> None:
        await asyncio.sleep(600)

    app.task("work")(lambda params: None)
    spawned = await client.spawn_lease(QUEUE, "work")
    async with worker(dsn, app) as running:
        await ended(client, spawned.lease_id)
    assert running.has_leftovers
    assert "a hook of on_stop runs longer than 0.01 s; it is left" in caplog.text
