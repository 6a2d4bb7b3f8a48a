"""When a worker reaps, and how it goes on while something is left."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from datetime import timedelta
from typing import cast

import pytest

from hwqueue.errors import HwqueueError
from hwqueue.types import ReapResult
from hwqueue.worker.reaper import reap_regularly
from hwqueue.worker.session import NodeSession

INTERVAL = timedelta(milliseconds=1)


def result(expired: int, *, more: bool) -> ReapResult:
    return ReapResult(expired=expired, promoted=0, deadlines=0, more=more)


class Session:
    """Gives the answers it was given, then stays silent; keeps the spans it heard."""

    def __init__(self, answers: Sequence[ReapResult | HwqueueError]) -> None:
        self._answers = list(answers)
        self.silent = asyncio.Event()
        self.spans: list[timedelta] = []

    async def reap(self, unless_within: timedelta) -> ReapResult:
        self.spans.append(unless_within)
        if not self._answers:
            self.silent.set()
            await asyncio.Event().wait()
        answer = self._answers.pop(0)
        if isinstance(answer, HwqueueError):
            raise answer
        return answer


async def spans_of(*answers: ReapResult | HwqueueError) -> list[timedelta]:
    """The spans of all calls, the first after the answers included."""
    session = Session(answers)
    task = asyncio.ensure_future(reap_regularly(cast(NodeSession, session), INTERVAL))
    await session.silent.wait()
    task.cancel()
    return session.spans


def test_it_leaves_the_turn_to_whoever_has_just_reaped() -> None:
    spans = asyncio.run(spans_of(result(0, more=False), result(0, more=False)))
    assert spans == [INTERVAL / 10] * 3


def test_what_is_left_is_reaped_at_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    pile = [result(1000, more=True), result(1000, more=True), result(7, more=False)]
    spans = asyncio.run(spans_of(*pile))
    assert spans == [INTERVAL / 10, timedelta(0), timedelta(0), INTERVAL / 10]
    assert "2007 claims had expired" in caplog.text


def test_a_refusal_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    asyncio.run(spans_of(HwqueueError("no"), result(0, more=False)))
    assert "reap was refused: no" in caplog.text
