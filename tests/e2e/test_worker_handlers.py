"""What becomes of a lease when its handler returns, raises, or takes too long; typed tasks."""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import psycopg
import pytest

from hwqueue import App, Keyed, Retry, Snooze, Throttled, errors
from hwqueue.client import AsyncClient
from hwqueue.client._drivers import Rows
from hwqueue.testing import Clock
from hwqueue.types import Lease, LeaseState, LimitLane, QueuePolicy
from hwqueue.worker.session import NodeClient
from tests.e2e.worker_app import Picture, Size, app
from tests.e2e.worker_support import AT_ONCE, BOUND_SECONDS, QUEUE, ended, run_one, until, worker, works

pytestmark = pytest.mark.usefixtures("way")


@pytest.fixture
def policy() -> QueuePolicy:
    return QueuePolicy(max_result_bytes=1000, retry=AT_ONCE)


@pytest.mark.parametrize("way", ["login"], indirect=True)
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system cannot pin")
@pytest.mark.parametrize("task", ["cpus", "cpus-process"])
async def test_a_handler_runs_on_the_cores_of_its_lease(
    client: AsyncClient, dsn: str, caplog: pytest.LogCaptureFixture, task: str
) -> None:
    classes = {"cpu_isolation": ("whole_core",), "default_cpu_isolation": "whole_core"}
    spawned = await client.spawn_lease(QUEUE, task, {})
    async with worker(dsn, detect=True, gpus=(), **classes):
        lease = await ended(client, spawned.lease_id)
    assert lease.state is LeaseState.COMPLETED, lease.error
    assert lease.result["on"] == lease.result["given"]
    assert lease.result["on"]
    [line] = [text for text in caplog.messages if text.startswith("not pinned to the cores")]
    loose = line.partition(": ")[2].split(", ")
    assert "add" in loose
    assert task not in loose


async def test_a_failing_handler_is_tried_again(client: AsyncClient, dsn: str) -> None:
    lease = await run_one(client, dsn, "flaky", {})
    assert (lease.state, lease.result, lease.attempt) == (LeaseState.COMPLETED, "done", 3)
    first, second = lease.attempts
    assert (first.outcome, first.error["type"]) == ("failed", "ValueError")
    assert "the first attempt fails" in first.error["traceback"]
    assert second.error["message"] == "so does the second"


UNFIT = {"folder": "a", "at": "2030-01-02T00:00:00+00:00", "size": "huge"}
NO_SIZE = 'params.size must be one of "small", "large", not "huge"'
# Task and params; after how many attempts it has failed, and what its error says.
FAIL: list[tuple[str, Any, int, str, str]] = [
    ("reject", None, 1, "hwqueue.app.Reject", ""),
    ("not-json", None, 1, "ResultNotJson", ""),
    ("large", 2000, 1, "ResultRefused", ""),
    ("picky-about-errors", {}, 2, "ValueError", "for good"),
    ("picky-process", {}, 1, "ValueError", "for good"),
    ("picky-thread", {}, 1, "ValueError", "for good"),
    *(
        (f"draw{kind}", UNFIT, 1, "BadParams", NO_SIZE)
        for kind in ("", "-async", "-process", "-process-async")
    ),
]


async def test_what_cannot_succeed_is_not_tried_again(client: AsyncClient, dsn: str) -> None:
    """And holds up no result of others."""
    tasks = [("large", 10), *((task, params) for task, params, *_ in FAIL), ("large", 20)]
    spawned = await client.spawn_leases(QUEUE, [{"task": task, "params": params} for task, params in tasks])
    async with worker(dsn):
        first, *failed, last = [await ended(client, one.lease_id) for one in spawned]
    assert (first.state, last.state) == (LeaseState.COMPLETED, LeaseState.COMPLETED)
    for lease, (task, _, attempts, kind, said) in zip(failed, FAIL, strict=True):
        assert (task, lease.state, lease.attempt) == (task, LeaseState.FAILED, attempts)
        assert (lease.error["type"], said or lease.error["message"]) == (kind, lease.error["message"])


@pytest.mark.parametrize(
    ("task", "kind", "message"),
    [
        ("exit", "SystemExit", "7"),
        ("run-out", "StopIteration", ""),
        ("cancel-itself", "Cancelled", "the handler cancelled itself"),
        ("cancel-itself-process", "Cancelled", "the handler cancelled itself"),
    ],
)
async def test_no_exception_of_a_handler_harms_the_worker(
    client: AsyncClient, dsn: str, task: str, kind: str, message: str
) -> None:
    leaving = await client.spawn_lease(QUEUE, task, max_attempts=1)
    async with worker(dsn, concurrency=1):
        lease = await ended(client, leaving.lease_id)
        await works(client)
    assert (lease.error["type"], lease.error["message"]) == (kind, message)


@pytest.mark.parametrize("way", ["login"], indirect=True)
async def test_a_result_is_given_up_only_if_it_cannot_be_kept(
    client: AsyncClient, dsn: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Any other refusal leaves the lease to its timeout, and says why."""
    settle_batch = NodeClient.settle_batch

    async def refuse_results(self: NodeClient, *args: Any, **options: Any) -> Rows:
        if any(item["outcome"] == "complete" for item in args[2].items):
            raise psycopg.errors.InsufficientPrivilege("may not write")
        return await settle_batch(self, *args, **options)

    monkeypatch.setattr(NodeClient, "settle_batch", refuse_results)
    spawned = await client.spawn_lease(QUEUE, "add", {"a": 1, "b": 2})
    async with worker(dsn):
        await until(lambda: "it comes back by its timeout: may not write" in caplog.text)
        assert (await client.get_lease(spawned.lease_id)).state is LeaseState.CLAIMED
    assert "one by one: may not write" in caplog.text


async def test_a_handler_can_extend_its_claim(client: AsyncClient, dsn: str) -> None:
    lease = await run_one(client, dsn, "extend", 3600)
    assert datetime.fromisoformat(lease.result) - datetime.now(UTC) > timedelta(minutes=50)


async def test_tasks_without_a_handler_and_other_queues_are_left_alone(client: AsyncClient, dsn: str) -> None:
    await client.create_queue("other")
    unknown = await client.spawn_lease(QUEUE, "unheard-of")
    elsewhere = await client.spawn_lease("other", "add", {"a": 1, "b": 1})
    await run_one(client, dsn, "add", {"a": 1, "b": 1})
    assert (await client.get_lease(unknown.lease_id)).state is LeaseState.PENDING
    assert (await client.get_lease(elsewhere.lease_id)).state is LeaseState.PENDING


async def test_no_more_handlers_run_than_its_concurrency(client: AsyncClient, dsn: str) -> None:
    app, go = App(), asyncio.Event()
    running, most = 0, 0

    @app.task("meet")
    async def meet(params: Any) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await go.wait()
        running -= 1

    spawned = await client.spawn_leases(QUEUE, [{"task": "meet"}] * 9)
    async with worker(dsn, app, concurrency=3):
        await until(lambda: running >= 3)
        assert len(await client.list_leases(state=LeaseState.CLAIMED)) == 3
        go.set()
        leases = [await ended(client, one.lease_id) for one in spawned]
    assert {lease.state for lease in leases} == {LeaseState.COMPLETED}
    assert most == 3


async def test_what_waits_ahead_of_a_slot_goes_back_without_an_attempt(client: AsyncClient, dsn: str) -> None:
    app, go = App(), asyncio.Event()
    ran: list[int] = []

    @app.task("frame")
    async def frame(n: int) -> None:
        ran.append(n)
        if n == 30:
            await go.wait()

    batch = [{"task": "frame", "params": {"n": n}} for n in range(60)]
    spawned = await client.spawn_leases(QUEUE, batch)
    async with worker(dsn, app, concurrency=1):
        await until(lambda: len(ran) == 31)  # it was quick until now, so others wait behind it
        async with worker(dsn, app, name="node-2", concurrency=1):
            await until(lambda: len(ran) == 60)
            go.set()
            leases = [await ended(client, one.lease_id) for one in spawned]
    assert (ran[:31], sorted(ran)) == (list(range(31)), list(range(60)))
    assert {(lease.state, lease.attempt) for lease in leases} == {(LeaseState.COMPLETED, 1)}
    assert "released" in {attempt.outcome for lease in leases for attempt in lease.attempts}


async def test_retry_counts_by_the_clock_of_the_database(client: AsyncClient, dsn: str, clock: Clock) -> None:
    clock.freeze(datetime(2035, 1, 1, tzinfo=UTC))  # of this machine's nobody asks
    odd, app = datetime(9999, 12, 31, 23, tzinfo=timezone(timedelta(hours=-2))), App()

    @app.task("later")
    async def later() -> None:
        raise Retry("later", after=timedelta(hours=1))

    @app.task("odd")
    async def odd_time() -> None:
        error = Retry("told")
        error.at = odd  # what nothing could check
        raise error

    @app.task("odd-snooze")
    async def odd_snooze() -> None:
        error = Snooze("told", at=datetime(2036, 1, 1, tzinfo=UTC))
        error.at = odd
        raise error

    names = ("later", "odd", "odd-snooze")
    spawned = [await client.spawn_lease(QUEUE, name, max_attempts=1 + (name == "later")) for name in names]
    leases: dict[str, Lease] = {}

    async def settled() -> None:
        while not all(lease.attempts for lease in leases.values()):
            await read()

    async def read() -> None:
        for name, one in zip(names, spawned, strict=True):
            leases[name] = await client.get_lease(one.lease_id)
        await asyncio.sleep(0)

    async with worker(dsn, app):
        await read()
        await asyncio.wait_for(settled(), BOUND_SECONDS)
    assert leases["later"].available_at == clock.now() + timedelta(hours=1)
    assert leases["odd"].attempts[0].error["message"] == "told"
    assert leases["odd-snooze"].attempts[0].error["type"] == "SnoozeRefused"


async def test_a_service_that_has_had_enough(client: AsyncClient, dsn: str) -> None:
    app = App()

    @app.task("call", queue=QUEUE, limits=Keyed("api", "user"))
    async def call(user: str, answer: str) -> str:
        if answer != "200":
            raise Throttled(answer, retry_after=3600, message="429")
        return user

    await client.create_limit("api", {"slots": 1, "by": "key"})
    throttled = await call.spawn(client, user="u42", answer="api")
    behind = await call.spawn(client, user="u42", answer="200")
    other = await call.spawn(client, user="u43", answer="200")
    wrong = await call.spawn(client, user="u44", answer="none")
    async with worker(dsn, app), asyncio.timeout(BOUND_SECONDS):
        assert await other.result() == "u43"
        lanes: dict[str, LimitLane] = {}
        while "u42" not in lanes or lanes["u42"].parked < 2:
            lanes = {lane.key: lane for lane in await client.limit_lanes("api")}
            await asyncio.sleep(0.05)
        while not (await client.get_lease(wrong.lease_id)).attempts:
            await asyncio.sleep(0.05)
    assert lanes["u42"].closed_until is not None
    for one in (throttled, behind, wrong):
        lease = await client.get_lease(one.lease_id)
        assert lease.state is LeaseState.SCHEDULED
        assert all(attempt.outcome == "released" for attempt in lease.attempts)
    told = await client.explain_lease(behind.lease_id)
    assert (told.code, told.waits_until) == ("rate_limited", lanes["u42"].closed_until)


async def test_finished_leases_go_by_themselves(client: AsyncClient, dsn: str) -> None:
    # zero would be another thing: it is gone when it completes, without a prune
    await client.set_queue_policy(QUEUE, QueuePolicy(retain_completed=timedelta(milliseconds=1)))
    spawned = await client.spawn_lease(QUEUE, "add", {"a": 1, "b": 2})
    often = {"prune_interval": timedelta(seconds=1), "reap_interval": timedelta(seconds=0.1)}
    async with worker(dsn, **often), asyncio.timeout(BOUND_SECONDS):
        while await client.list_leases(queue=QUEUE):
            await asyncio.sleep(0.05)
    with pytest.raises(errors.LeaseNotFound):
        await client.get_lease(spawned.lease_id)


AT = datetime(2030, 1, 2, tzinfo=UTC)
KINDS = [app.tasks[f"draw{kind}"] for kind in ("", "-async", "-process", "-process-async")]


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
