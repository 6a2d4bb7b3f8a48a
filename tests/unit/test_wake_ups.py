"""Wake-ups have a rate, whoever sends how many notifications."""

import asyncio
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from unittest.mock import AsyncMock, Mock
from uuid import UUID

import psycopg
import pytest

from hwqueue.client import _pauses
from hwqueue.client._sync import waiting
from hwqueue.types import AwaitedLease, LeaseState
from hwqueue.worker.listen import WakeUps
from hwqueue.worker.loop import ClaimLoop
from hwqueue.worker.signals import Shutdown
from tests.unit.claims import claim


class Loop:
    """Counts calls, at a time that the test sets."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.calls = 0

    def work(self) -> None:
        self.calls += 1


async def test_a_flood_wakes_a_burst_and_then_at_the_rate() -> None:
    loop = Loop()
    wake_ups = WakeUps(loop.work, burst=3, per_second=1000.0, clock=lambda: loop.now)
    for _ in range(10_000):
        wake_ups.wake()
    assert loop.calls == 3
    while loop.calls == 3:  # the one that is arranged comes, and is for all of them
        await asyncio.sleep(0)
    assert loop.calls == 4
    loop.now += 60
    for _ in range(10_000):
        wake_ups.wake()
    assert loop.calls == 7
    wake_ups.close()


async def test_one_now_and_then_is_passed_on_at_once() -> None:
    loop = Loop()
    wake_ups = WakeUps(loop.work, burst=1, per_second=10.0, clock=lambda: loop.now)
    for expected in range(1, 100):
        wake_ups.wake()
        assert loop.calls == expected
        loop.now += 0.1001


async def test_after_closing_nothing_comes() -> None:
    loop = Loop()
    wake_ups = WakeUps(loop.work, burst=1, per_second=1e9, clock=lambda: loop.now)
    wake_ups.wake()
    wake_ups.wake()
    wake_ups.close()
    for _ in range(100):
        await asyncio.sleep(0)
    assert loop.calls == 1


async def test_only_claims_that_find_nothing_use_up_wake_ups() -> None:
    runner = Mock(free=1, wake=asyncio.Event(), take_ended=list)
    settled = AsyncMock(return_value=[claim("any")])
    session = Mock(in_doubt=False, settle_and_claim=settled, retry_after=AsyncMock(return_value=None))
    wake_ups = WakeUps(runner.wake.set, burst=2, per_second=1e-6)
    loop = ClaimLoop(session, runner, Mock(), Shutdown(), poll_seconds=3600.0, wake_ups=wake_ups)

    async def claims_once() -> bool:
        for _ in range(1000):  # one claim answers all of them
            loop.hear()
        is_woken: bool = runner.wake.is_set()
        runner.wake.clear()
        await loop._round()
        return is_woken

    assert [await claims_once() for _ in range(5)] == [True] * 5
    assert await loop._idle_seconds(claimed=1) < 1  # then one finds nothing, and work is announced
    settled.return_value = []
    # what is spawned while that one runs is neither found nor announced: one more looks for it
    assert [await loop._idle_seconds(claimed=0) < 1 for _ in range(3)] == [True, False, False]
    runner.free = 0  # the end of a handler claims
    assert not await claims_once()
    runner.free = 1
    assert [await claims_once() for _ in range(3)] == [True, True, False]
    wake_ups.close()


class Repeats:
    """A connection on which somebody repeats a payload; it is the runner that opens it, too."""

    def __init__(self) -> None:
        self.unread = 10_000

    def listen(self, _statement: str) -> Any:
        return self

    def notifies(self, *, timeout: float) -> Iterator[psycopg.Notify]:
        for _ in range(1 if timeout else self.unread):
            self.unread -= 1
            yield psycopg.Notify("hwqueue_ended", "heard", 1)

    def close(self) -> None:
        """Nothing to close."""


def test_a_repeated_end_wakes_who_waits_a_burst_and_then_at_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    paused: list[float] = []
    connection: Any = Repeats()
    monkeypatch.setattr(waiting, "pause", paused.append)
    endings = waiting.Endings(connection)
    endings._rate = _pauses.Rate(burst=3, per_second=20.0, clock=lambda: 1000.0)
    assert endings.open()
    claimed = AwaitedLease(lease_id=UUID(int=1), state=LeaseState.CLAIMED, payload="heard")
    pauses = _pauses.Pauses(timedelta(hours=1))
    for _ in range(20):
        pauses.next(notified=True)
    for _ in range(3):
        endings.pause([claimed], pauses)
    assert paused == []
    endings.pause([claimed], pauses)
    assert paused == [pytest.approx(0.05)]
    assert connection.unread == 0
