"""What handlers report, until it is sent."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any

import pytest

from hwqueue.errors import BadArgument
from hwqueue.handler.context import AsyncLeaseContext
from hwqueue.handler.lease_facts import Report, progress_report
from hwqueue.worker.outbox import ProgressOutbox
from tests.unit.claims import claim

pytestmark = pytest.mark.embedded


@pytest.mark.parametrize(
    ("done", "total", "said"),
    [
        (0.4, None, {"fraction": 0.4}),
        (1.5, None, {"fraction": 1.0}),
        (40, 100, {"fraction": 0.4, "done": 40, "total": 100}),
        (101, 100, {"fraction": 1.0, "done": 100, "total": 100}),
        (0, 0, {"fraction": 1.0}),
        (0.1, 0.4, {"fraction": 0.25}),
    ],
)
def test_fractions_and_counts(done: float, total: float | None, said: Report) -> None:
    assert progress_report(done, "", total) == said


@pytest.mark.parametrize(
    ("done", "total"),
    [(-1, None), (math.nan, None), (1, math.inf), (0, -1), (1, 2**63), (10**5000, None)],
    ids=lambda value: "huge" if value and value > 2**64 else None,
)
def test_what_is_no_progress(done: float, total: float | None) -> None:
    with pytest.raises(BadArgument, match="must be a number of at least 0 and below"):
        progress_report(done, "", total)


def test_any_message_can_be_kept() -> None:
    said = progress_report(0, "a\0b\ud800" + "x" * 300, None)["message"]
    assert said.startswith("a b?x")
    assert len(said) == 200


async def test_the_last_of_many_is_sent() -> None:
    sent: list[Sequence[Report]] = []

    async def send(reports: Sequence[Report]) -> None:
        sent.append(reports)

    outbox = ProgressOutbox(send)
    one, two = claim("see"), claim("see")
    for fraction in (0.1, 0.2):
        outbox.tell(one, {"fraction": fraction})
        await asyncio.to_thread(outbox.tell, two, {"fraction": fraction})
    await outbox.flush()
    await outbox.flush()
    assert [[report["fraction"] for report in reports] for reports in sent] == [[0.2, 0.2]]


async def test_a_settlement_waits_for_what_is_under_way() -> None:
    order: list[str] = []
    may_end = asyncio.Event()

    async def send(_reports: Sequence[Report]) -> None:
        order.append("begun")
        await may_end.wait()
        order.append("sent")

    outbox = ProgressOutbox(send)
    sending = asyncio.create_task(outbox.run())
    outbox.tell(claim("see"), {"fraction": 1})
    while not order:
        await asyncio.sleep(0)
    settling = asyncio.create_task(outbox.flush())
    await asyncio.sleep(0)
    assert not settling.done()
    may_end.set()
    await settling
    assert order == ["begun", "sent"]
    sending.cancel()


async def test_a_report_that_is_refused_takes_no_others_with_it(caplog: pytest.LogCaptureFixture) -> None:
    sent: list[Report] = []

    async def send(reports: Sequence[Report]) -> None:
        if any(report["fraction"] > 1 for report in reports):
            raise BadArgument("no")
        sent.extend(reports)

    outbox = ProgressOutbox(send)
    for fraction in (0.1, 7, 0.2):
        outbox.tell(claim("see"), {"fraction": fraction})
    await outbox.flush()
    assert [report["fraction"] for report in sent] == [0.1, 0.2]
    assert caplog.messages == ["progress was not recorded: no"]


async def test_what_an_async_handler_says_may_be_awaited() -> None:
    """It is said in either case, at once; a handler under test needs nobody who keeps it."""
    told: list[Any] = []
    context = AsyncLeaseContext(claim=claim("see"), tell_progress=told.append)
    saying = context.progress(0.5, "half")
    assert told == [{"fraction": 0.5, "message": "half"}]
    await saying
    await context.log("half")
    assert len(told) == 1
