"""When a worker reaps and prunes, and how it goes on while something is left."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any, cast

import pytest

from hwqueue.client import AsyncClient
from hwqueue.errors import HwqueueError
from hwqueue.types import PruneResult, ReapResult
from hwqueue.worker.session import NodeSession
from hwqueue.worker.upkeep import plan_regularly, prune_regularly, reap_regularly

INTERVAL = timedelta(milliseconds=1)
Answer = ReapResult | PruneResult | HwqueueError
Part = Callable[[NodeSession, timedelta], Coroutine[Any, Any, None]]


def result(expired: int, *, more: bool) -> ReapResult:
    return ReapResult(expired=expired, promoted=0, deadlines=0, more=more)


def removed(leases: int, *, more: bool) -> PruneResult:
    return PruneResult(leases=leases, classes=0, nodes=0, more=more)


class Session:
    """Gives the answers it was given, then stays silent; keeps the spans it heard."""

    def __init__(self, answers: Sequence[Answer]) -> None:
        self._answers = list(answers)
        self.silent = asyncio.Event()
        self.spans: list[timedelta] = []
        self.asked: set[tuple[Any, ...]] = set()

    async def call(self, method: Any, *, unless_within: timedelta, **limit: int) -> Answer:
        self.asked.add((method, *limit))
        self.spans.append(unless_within)
        if not self._answers:
            self.silent.set()
            await asyncio.Event().wait()
        answer = self._answers.pop(0)
        if isinstance(answer, HwqueueError):
            raise answer
        return answer


async def spans_of(*answers: Answer, part: Part = reap_regularly) -> list[timedelta]:
    """The spans of all calls, the first after the answers included."""
    session = Session(answers)
    task = asyncio.ensure_future(part(cast(NodeSession, session), INTERVAL))
    await session.silent.wait()
    task.cancel()
    assert session.asked == {(AsyncClient.reap,) if part is reap_regularly else (AsyncClient.prune, "limit")}
    return session.spans


def test_it_leaves_the_turn_to_whoever_has_just_reaped() -> None:
    spans = asyncio.run(spans_of(result(0, more=False), result(0, more=False)))
    assert spans == [INTERVAL / 5] * 3


def test_expired_claims_are_reaped_at_once_and_after_others_it_rests(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    waits = list[float]()
    sleep = asyncio.sleep

    async def note(seconds: float) -> None:
        waits.append(seconds)
        await sleep(0)

    monkeypatch.setattr(asyncio, "sleep", note)
    for expired, rests in ((1000, 0), (0, 2)):
        waits.clear()
        pile = [result(expired, more=True), result(expired, more=True), result(7, more=False)]
        spans = asyncio.run(spans_of(*pile))
        assert spans == [INTERVAL / 5, timedelta(0), timedelta(0), INTERVAL / 5]
        assert len(waits) == 2 + rests
        assert all(0 < wait <= INTERVAL.total_seconds() for wait in waits[1:-1])
        assert f"{2 * expired + 7} claims had expired" in caplog.text


def test_a_refusal_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    asyncio.run(spans_of(HwqueueError("no"), result(0, more=False)))
    assert "reap was refused: no" in caplog.text
    asyncio.run(spans_of(HwqueueError("no"), removed(0, more=False), part=prune_regularly))
    assert "prune was refused: no" in caplog.text


def test_pruning_goes_on_while_there_is_more() -> None:
    pile = [removed(5000, more=True), removed(5000, more=True), removed(7, more=False)]
    spans = asyncio.run(spans_of(*pile, removed(0, more=False), part=prune_regularly))
    turn = INTERVAL / 2
    assert spans == [turn, timedelta(0), timedelta(0), turn, turn]


def test_schedules_are_planned_now_and_then() -> None:
    class Planner(Session):
        async def call(self, method: Any, **_: Any) -> Any:
            return await super().call(method, unless_within=timedelta(0))

    async def planned() -> set[tuple[Any, ...]]:
        session = Planner([removed(0, more=False)] * 2)
        task = asyncio.ensure_future(plan_regularly(cast(NodeSession, session), INTERVAL))
        await session.silent.wait()
        task.cancel()
        return session.asked

    assert asyncio.run(planned()) == {(AsyncClient.plan_schedules,)}


def test_a_turn_of_pruning_ends() -> None:
    """However much there is: the rest waits for the next one."""
    spans = asyncio.run(spans_of(*[removed(5000, more=True)] * 100, part=prune_regularly))
    assert spans.count(INTERVAL / 2) == 2
    assert spans.index(INTERVAL / 2, 1) == 60
