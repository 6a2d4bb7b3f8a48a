"""Handlers in threads: they run on the CPUs of their lease, and leave the thread as it was."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

from hwqueue.app import App
from hwqueue.handler.context import LeaseContext
from hwqueue.types import Assignment, Claim
from hwqueue.worker.outcome import Outcome
from tests.unit.claims import claim, make_runner

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system cannot pin")
NO_CPU = 100_000
app = App()


@app.task("where")
def where(params: Any, _context: LeaseContext) -> dict[str, Any]:
    if params == "fail":
        raise ValueError("no")
    return {"cpus": sorted(os.sched_getaffinity(0)), "thread": threading.get_native_id()}


@app.task("where-plain")
def where_plain(_params: Any) -> list[int]:
    return sorted(os.sched_getaffinity(0))


def given(task: str, *cpus: int, params: Any = None) -> Claim:
    return claim(task, params, Assignment(cpus=cpus or None))


async def outcomes(*claims: Claim) -> list[Outcome]:
    """How they ended, one after the other in one thread."""

    runner = make_runner(app)
    for one in claims:
        runner.start(one)
        await runner.wait(30)
    runner.close()
    return [ended.how for ended in runner.take_ended()]


async def test_each_lease_has_its_own_cpus() -> None:
    every = sorted(os.sched_getaffinity(0))
    first, last = every[0], every[-1]
    pinned, other, free, plain = await outcomes(
        given("where", first), given("where", last), given("where"), given("where-plain", last)
    )
    assert [how.result["cpus"] for how in (pinned, other, free)] == [[first], [last], every]
    assert plain.result == [last]
    assert len({how.result["thread"] for how in (pinned, other, free)}) == 1
    assert sorted(os.sched_getaffinity(0)) == every


async def test_a_failing_handler_leaves_the_thread_as_it_was() -> None:
    every = sorted(os.sched_getaffinity(0))
    failed, after = await outcomes(given("where", every[0], params="fail"), given("where"))
    assert failed.kind == "fail"
    assert after.result["cpus"] == every


async def test_a_lease_whose_cpus_are_gone_fails() -> None:
    """It would run on the cores of others."""
    [ended] = await outcomes(given("where", NO_CPU))
    assert (ended.kind, ended.retry) == ("fail", True)
    assert ended.error is not None
    assert ended.error["type"] in ("OSError", "OverflowError")
