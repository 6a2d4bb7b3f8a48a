"""Which claims a worker keeps, and what the verdicts do to its handlers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, cast
from unittest.mock import Mock
from uuid import UUID, uuid4

import pytest

from hwqueue.app import App
from hwqueue.types import Claim, Heartbeat, Verdict
from hwqueue.worker.heartbeat import HeartbeatLoop
from hwqueue.worker.runner import Runner, StopReason
from hwqueue.worker.session import NodeSession
from tests.unit.claims import claim as any_claim
from tests.unit.claims import make_runner

LEASE = uuid4()
NOW = datetime(2030, 1, 1, tzinfo=UTC)
app = App()


@pytest.fixture(autouse=True)
def _time_stands_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hwqueue.worker.heartbeat.datetime", Mock(now=lambda _zone: NOW))


@app.task("wait")
async def wait(params: Any) -> None:
    await asyncio.Event().wait()


@app.task("stubborn")
async def stubborn(params: asyncio.Event) -> None:
    """Takes its time to give way."""
    try:
        await asyncio.Event().wait()
    finally:
        await params.wait()


@app.task("return")
async def at_once(params: Any) -> int:
    return 1


def claim(task: str, token: int, params: Any = None, seconds: float = 3600) -> Claim:
    ends_at = NOW + timedelta(seconds=seconds)
    return replace(any_claim(task, params), lease_id=LEASE, claim_token=token, expires_at=ends_at)


class Session:
    """Answers heartbeats with the verdicts it was given, `ok` where none; keeps what it heard."""

    def __init__(self, verdicts: dict[int, Verdict] | None = None) -> None:
        self.verdicts = verdicts or {}
        self.heard: list[list[int]] = []
        self.longest_waits: list[float] = []

    async def heartbeat(self, claims: Sequence[Claim], longest_wait: float) -> list[Heartbeat]:
        self.heard.append([one.claim_token for one in claims])
        self.longest_waits.append(longest_wait)
        return [self._answer(one.lease_id, one.claim_token) for one in claims]

    def _answer(self, lease_id: UUID, token: int) -> Heartbeat:
        verdict = self.verdicts.get(token, Verdict.OK)
        is_over = verdict in (Verdict.LOST, Verdict.FINISHED)
        ends_at = None if is_over else NOW + timedelta(hours=1)
        return Heartbeat(lease_id=lease_id, verdict=verdict, expires_at=ends_at, claim_token=token)


@pytest.fixture
async def runner() -> AsyncIterator[Runner]:
    made = make_runner(app, concurrency=4)
    yield made
    made.stop_all(StopReason.SHUTDOWN)
    await made.wait(30)


def heartbeat(session: Session, runner: Runner) -> HeartbeatLoop:
    return HeartbeatLoop(cast(NodeSession, session), runner, timedelta(hours=1))


async def test_two_runs_of_one_lease_are_told_apart(runner: Runner) -> None:
    """The older one was lost and has not given way yet; the verdicts on it are not the newer's."""
    go, session = asyncio.Event(), Session({1: Verdict.LOST})
    beating = heartbeat(session, runner)
    runner.start(claim("stubborn", 1, go))
    runner.start(claim("wait", 2))
    await asyncio.sleep(0)
    await beating.beat()
    assert {one.claim.claim_token: one.reason for one in runner.running} == {1: StopReason.LOST, 2: None}
    await beating.beat()
    assert session.heard == [[1, 2], [2]]
    go.set()


async def test_a_handler_that_completed_its_lease_goes_on_and_hurries_no_heartbeat(runner: Runner) -> None:
    session = Session({1: Verdict.FINISHED})
    beating = heartbeat(session, runner)
    runner.start(done := claim("wait", 1, seconds=1))
    beating.watch([done])
    await beating.beat()
    assert [one.reason for one in runner.running] == [None]
    await beating.beat()
    assert session.longest_waits == [0.25, 2.0]


async def test_a_claim_is_kept_until_it_is_settled(runner: Runner) -> None:
    session = Session()
    beating = heartbeat(session, runner)
    runner.start(claim("return", 1))
    await runner.wake.wait()
    await beating.beat()
    [(ended, *_more)] = runner.take_ended()
    assert ended.claim_token == 1
    await beating.beat()
    assert runner.abandon() != []
    runner.forget_settled()
    await beating.beat()
    assert session.heard == [[1], [1], []]


async def test_a_process_that_let_its_claims_expire_says_what_to_do(
    runner: Runner, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    session, held_up = Session(), 0.0
    loop = asyncio.get_running_loop()
    monkeypatch.setattr(HeartbeatLoop, "_loop_time", staticmethod(lambda: loop.time() + held_up))
    beating = heartbeat(session, runner)
    running = asyncio.ensure_future(beating.run())
    runner.start(short := claim("wait", 1, seconds=-1))
    await asyncio.sleep(0)
    beating.watch([short])
    held_up = 20.0
    while not session.heard:
        await asyncio.sleep(0)
    assert "the heartbeat comes 20 s late, for 1 claims too late" in caplog.text
    assert "process=True" in caplog.text
    running.cancel()


async def test_the_waits_follow_what_the_last_answer_said(runner: Runner) -> None:
    """A claim that is about to end comes, and is extended by an hour; tries that fail count, too."""
    session = Session()
    beating = heartbeat(session, runner)
    await beating.beat()
    runner.start(short := claim("wait", 1, seconds=4))
    beating.watch([short])
    await beating.beat()
    await beating.beat()
    assert session.longest_waits == [2.0, 1.0, 2.0]
