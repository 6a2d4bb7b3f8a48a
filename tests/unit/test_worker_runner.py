"""Handlers that run: what is held, and what becomes of threads that outlive their timeout."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from types import FrameType
from typing import Any
from uuid import UUID

import pytest

from hwqueue.app import App
from hwqueue.types import LeaseOutlook, LeaseState, Settled, Verdict
from hwqueue.worker import LeaseContext, Worker, WorkerSettings, spare_collector
from hwqueue.worker.report import Reports
from hwqueue.worker.runner import Runner, StopReason
from tests.unit.claims import claim, make_runner

LEASES = 20
MOST_CALLS = 25  # of hwqueue, for a lease whose handler takes the params alone

go = threading.Event()
app = App()


@app.task("returns-late", timeout=timedelta(milliseconds=10))
async def returns_late(params: Any) -> str:
    with suppress(asyncio.CancelledError):
        await asyncio.sleep(600)
    if params:
        raise RuntimeError(params)
    return "late"


@app.task("late", timeout=timedelta(milliseconds=10))
def late(params: Any) -> str:
    go.wait(30)
    return "late"


@app.task("gives-way", timeout=timedelta(milliseconds=10))
def gives_way(params: Any, context: LeaseContext) -> None:
    context.cancelled.wait(30)
    go.wait(30)
    context.raise_if_cancelled()


@app.task("nothing")
async def nothing(params: Any) -> None: ...


@app.task("stubborn")
def stubborn(params: Any) -> str:
    go.wait(30)
    return "done"


async def unasked(_ids: Sequence[UUID]) -> list[LeaseOutlook]:
    raise AssertionError


@contextmanager
def runner() -> Iterator[Runner]:
    go.clear()
    made = make_runner(app)
    try:
        yield made
    finally:
        go.set()
        made.close()


async def woken(made: Runner) -> None:
    async with asyncio.timeout(30):
        await made.wake.wait()
    made.wake.clear()


@pytest.mark.parametrize(
    ("task", "level", "said"),
    [
        ("late", logging.WARNING, "ended late, and its outcome is dropped, after its timeout"),
        ("gives-way", logging.INFO, "gave way after its timeout"),
    ],
)
async def test_a_thread_over_its_timeout_fails_at_once_and_holds_its_slot(
    caplog: pytest.LogCaptureFixture, task: str, level: int, said: str
) -> None:
    caplog.set_level(logging.INFO, "hwqueue.worker")
    granted = claim(task)
    with runner() as made:
        made.start(granted)
        assert (made.free, made.held) == (0, [granted])
        await woken(made)
        [(ended, how, *_more)] = made.take_ended()
        assert how.error is not None
        assert (ended, how.kind, how.error["type"]) == (granted, "fail", "Timeout")
        assert made.held == [granted]  # until it is settled
        made.forget_settled()
        assert (made.free, made.held, list(made.running)) == (0, [], [])
        assert made.has_leftovers
        made.stop_all(StopReason.SHUTDOWN)
        assert made.abandon() == []
        go.set()
        await woken(made)
        assert (made.free, made.has_ended, made.has_leftovers) == (1, False, False)
    [record] = [one for one in caplog.records if said in one.getMessage()]
    assert (record.levelno, vars(record)["task"]) == (level, task)


@pytest.mark.parametrize("params", [None, "an error in its clean-up"])
async def test_whatever_an_async_handler_does_over_its_timeout_it_has_failed(params: Any) -> None:
    with runner() as made:
        made.start(claim("returns-late", params))
        await woken(made)
        [(_claim, how, *_more)] = made.take_ended()
    assert how.error == {"type": "Timeout", "message": "ran longer than 0.01 s"}


async def test_a_timer_that_is_late_itself_fails_nobody() -> None:
    """The handler has returned; its end and its timeout wait in the loop, the timeout first."""
    with runner() as made:
        made.start(claim("late"))
        [execution] = made.running
        assert execution.timer is not None
        execution.timer.cancel()
        go.set()
        while not execution.future.done():
            await asyncio.sleep(0)
        made._on_timeout(execution)
        await woken(made)
        [(_claim, how, *_more)] = made.take_ended()
    assert (how.kind, how.result) == ("complete", "late")


async def test_completing_in_spite_of_a_cancel_is_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "hwqueue.worker")
    with runner() as made:
        one = claim("stubborn")
        made.start(one)
        made.stop_claims({(one.lease_id, one.claim_token): StopReason.CANCELLED})
        go.set()
        await woken(made)
        ended = made.take_ended()
    done = Settled(ordinal=1, lease_id=one.lease_id, verdict=Verdict.OK, state=LeaseState.COMPLETED)
    Reports(app, unasked).settled(ended, {1: done})
    assert "of task stubborn completed although asked to stop, in 0." in caplog.text


async def test_a_lease_costs_few_calls_beside_its_handler() -> None:
    """What a handler does not use (dependencies, middleware, log lines, spans) is not called."""
    seen: Counter[str] = Counter()

    def see(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_globals["__name__"].startswith("hwqueue."):
            seen[frame.f_code.co_qualname] += 1

    with runner() as made:
        sys.setprofile(see)
        try:
            for _ in range(LEASES):
                made.start(claim("nothing"))
                await woken(made)
        finally:
            sys.setprofile(None)
        assert [ended.how.kind for ended in made.take_ended()] == ["complete"] * LEASES
    assert sum(seen.values()) <= MOST_CALLS * LEASES, seen.most_common()


def test_what_is_imported_is_not_collected_again_and_again() -> None:
    gc.unfreeze()
    try:
        spare_collector()
        kept = gc.get_freeze_count()
        assert kept > 10_000
        assert len(gc.get_objects()) < kept / 10
    finally:
        gc.unfreeze()


async def test_a_worker_in_a_program_leaves_collections_to_it() -> None:
    frozen = gc.get_freeze_count()
    worker = Worker(app, WorkerSettings(dsn="", detect=False))
    worker.stop()
    await worker.run()
    assert gc.get_freeze_count() <= frozen
