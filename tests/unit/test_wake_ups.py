"""Who is woken by announced work, and how often, whoever sends how many notifications."""

import asyncio
import random
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any
from unittest.mock import AsyncMock, Mock, patch
from uuid import UUID

import psycopg
import pytest

from hwqueue.client import _pauses
from hwqueue.client._sync import waiting
from hwqueue.types import AwaitedLease, LeaseState
from hwqueue.worker import listen
from hwqueue.worker.listen import Announced, WakeUps
from hwqueue.worker.loop import ClaimLoop
from hwqueue.worker.signals import Shutdown
from tests.unit.claims import claim


class Clock:
    """An event loop's time and timers; the test lets it pass."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._timers: dict[Mock, tuple[float, Callable[[], None]]] = {}

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, call: Callable[[], None]) -> Mock:
        timer = Mock()
        timer.cancel = lambda: self._timers.pop(timer, None)
        self._timers[timer] = (self.now + seconds, call)
        return timer

    def go(self, seconds: float) -> None:
        until = self.now + seconds
        while due := [timer for timer, (at, _call) in self._timers.items() if at <= until]:
            self.now, call = self._timers.pop(min(due, key=lambda timer: self._timers[timer][0]))
            call()
        self.now = until


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(listen, "asyncio", Mock(get_running_loop=lambda: made))
    return made


class Fleet:
    """Idle workers, all of which hear of each lease; a lease is the set of those that may run it."""

    def __init__(self, clock: Clock, size: int) -> None:
        self.everybody = set(range(size))
        self.waiting: list[set[int]] = []
        self.took: list[int] = []
        self.stopped: set[int] = set()
        self._clock, self._random, self.vain = clock, random.Random(1), 0
        self._workers = [Announced(partial(self._claim, number)) for number in range(size)]

    def spawn(self, lease: set[int], seconds: float = 1 / 60) -> None:
        self.waiting.append(lease)
        for worker in self._random.sample(self._workers, len(self._workers)):
            worker.wake()
        self._clock.go(seconds)

    def _claim(self, number: int) -> None:
        if number in self.stopped:
            return
        is_heard = self._workers[number].begin()
        found = [lease for lease in self.waiting if number in lease][:1]
        for lease in found:
            self.waiting.remove(lease)
            self.took.append(number)
        self.vain += not found
        self._workers[number].answered(found, is_heard)


@pytest.mark.parametrize("size", [2, 10])
def test_one_of_the_idle_workers_takes_and_the_others_look_now_and_then(clock: Clock, size: int) -> None:
    fleet = Fleet(clock, size)
    for _ in range(1200):
        fleet.spawn(fleet.everybody)
        assert not fleet.waiting  # it was taken before the next one
    assert fleet.vain < 10 * 20 * (size - 1)  # a worker looks less than ten times a second
    before = fleet.vain
    fleet.spawn({size - 1}, 0.2)  # for one of unlike ones
    assert (fleet.waiting, fleet.took[-1]) == ([], size - 1)
    assert fleet.vain - before < size
    for _ in range(3):
        fleet.spawn(fleet.everybody)
    fleet.stopped.add(fleet.took[-1])
    fleet.spawn(fleet.everybody, 0.2)
    assert (fleet.waiting, fleet.took[-1] in fleet.stopped) == ([], False)
    for _ in range(60):
        fleet.spawn(fleet.everybody)
        assert not fleet.waiting


def test_a_flood_wakes_a_burst_and_then_at_the_rate(clock: Clock) -> None:
    called = Mock()
    wake_ups = WakeUps(called, _pauses.Rate(burst=3, per_second=10.0, clock=clock.time).take)
    for expected in (3, 13):
        for _ in range(1000):
            wake_ups.wake()
            clock.go(0.001 if expected > 3 else 1e-6)
        assert abs(called.call_count - expected) <= 1
    wake_ups.wake()
    wake_ups.close()
    called.reset_mock()
    clock.go(60)
    called.assert_not_called()


async def test_a_claim_for_announced_work_that_finds_nothing_puts_the_next_one_off(clock: Clock) -> None:
    runner = Mock(free=1, wanted=1, wake=asyncio.Event(), take_ended=list, due_in=None)
    settled = AsyncMock(return_value=[])
    session = Mock(in_doubt=False, settle_and_claim=settled, retry_after=AsyncMock(return_value=None))
    loop = ClaimLoop(session, runner, Mock(), Shutdown(), 3600.0, Announced(runner.wake.set))

    async def claims_at_once() -> bool:
        for _ in range(1000):  # one claim answers all of them
            loop.hear()
        clock.go(0)
        is_woken: bool = runner.wake.is_set()
        runner.wake.clear()
        await loop._round()
        return is_woken

    for _ in range(9):
        await loop._round()  # polls
    assert [await claims_at_once() for _ in range(3)] == [True, False, False]
    settled.return_value = [claim("any")]
    assert [await claims_at_once() for _ in range(3)] == [False, True, True]
    assert await loop._idle_seconds(claimed=1) < 1  # then one finds nothing, and work is announced
    settled.return_value = []
    # what is spawned while that one runs is neither found nor announced: one more looks, after others
    with patch("hwqueue.worker.loop.waited", side_effect=[True, False, EOFError] * 2) as waited:
        with pytest.raises(EOFError):
            await loop.run()
        assert [call.args[1] < 1 for call in waited.await_args_list] == [True, True, False]
        await loop._after_refusal([], psycopg.Error("no"))
    assert runner.wake.is_set()  # one that is refused is followed by another, not by a poll
    runner.wake.clear()
    runner.free = 0  # the end of a handler claims
    assert not await claims_at_once()


class Repeats:
    """A connection on which somebody repeats a payload; it is the runner that opens it, too."""

    unread = 10_000

    def listen(self, _statement: str) -> Any:
        return self

    def notifies(self, *, timeout: float) -> Iterator[psycopg.Notify]:
        for _ in range(1 if timeout else self.unread):
            self.unread -= 1
            yield psycopg.Notify("hwqueue_ended", "heard", 1)

    close = Mock()


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
    for _ in range(4):
        endings.pause([claimed], pauses)
    assert paused == [pytest.approx(0.05)]
    assert connection.unread == 0
