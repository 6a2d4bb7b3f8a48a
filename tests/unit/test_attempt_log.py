"""What handlers report, lines and progress, until it is sent."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from hwqueue import App
from hwqueue.errors import BadArgument, ConfigError
from hwqueue.handler.attempt_log import Line, log_line, numbered
from hwqueue.handler.context import AsyncLeaseContext
from hwqueue.handler.lease_facts import Report, progress_report
from hwqueue.logs import LogLevel, about
from hwqueue.testing import make_context
from hwqueue.worker.kept_records import keeping_records
from hwqueue.worker.outbox import Item, LogOutbox, ProgressOutbox
from tests.unit.claims import claim

pytestmark = pytest.mark.embedded


def lines_of(count: int) -> list[Line]:
    told: list[Line] = []
    tell = numbered(told.append)
    for _ in range(count):
        tell(log_line("a", "info", {}))
    return told


class Broken:
    """Its text cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"a": 1e300, "b": -1e-300, "c": 0.5}, {"a": "1e+300", "b": "-1e-300", "c": 0.5}),
        ({"a\0": {"b": ["\0"]}}, {"a\\0": {"b": ["\\0"]}}),
        ({"a": Broken()}, {"a": "(no text: RuntimeError in __str__)"}),
        ({"a": {1: 0.0, (1,): 2}}, {"a": {"1": 0.0}}),
        ({"a": "x" * 5000}, {"fields_left_out": "they have 5009 bytes"}),
    ],
    ids=["long numbers", "NUL", "no text", "odd keys", "too long"],
)  # fmt: skip
def test_fields_become_what_can_be_kept(fields: dict[str, Any], kept: dict[str, Any]) -> None:
    assert log_line("a", "info", fields)["fields"] == kept


def test_a_message_may_be_anything_and_fields_in_a_circle_are_left_out() -> None:
    assert log_line(Broken(), "info", {})["message"] == "(no text: RuntimeError in __str__)"
    assert log_line(7, "info", {})["message"] == "7"
    cut = log_line("é" * 3000, "info", {})["message"]
    assert cut.endswith("é ... (cut, 6000 bytes)")
    assert len(cut.encode()) <= 4096
    circle: dict[str, Any] = {}
    circle["a"] = circle
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    for fields in (circle, {"deep": deep}):
        assert list(log_line("a", "info", fields)["fields"]) == ["fields_left_out"]


def test_an_unknown_level_is_refused() -> None:
    loud: Any = "loud"
    with pytest.raises(BadArgument, match="level must be one of debug, info, warning, error"):
        make_context().log("a", loud)
    make_context().log("nobody keeps it", disk=7)
    with pytest.raises(ConfigError, match="keep_logs must be one of"):
        App(keep_logs=loud)


async def test_the_last_lines_of_each_claim_are_sent_together() -> None:
    sent: list[Sequence[Item]] = []

    async def send(items: Sequence[Item]) -> None:
        sent.append(items)

    outbox = LogOutbox(send)
    claims = [claim("see") for _ in range(3)]
    for one, count in zip(claims, (1500, 900, 200), strict=True):
        for line in lines_of(count):
            outbox.tell(one, line)
    await outbox.flush()
    await outbox.flush()
    kept = [[len(item["lines"]) for item in items] for items in sent]
    assert kept == [[1000, 900], [200]]
    assert sent[0][0]["lines"][0]["line"] == 501
    assert [item["lease_id"] for items in sent for item in items] == [str(one.lease_id) for one in claims]


async def test_lines_that_are_refused_take_no_others_with_them(caplog: pytest.LogCaptureFixture) -> None:
    sent: list[Item] = []

    async def send(items: Sequence[Item]) -> None:
        if any(len(item["lines"]) == 2 for item in items):
            raise BadArgument("no")
        sent.extend(items)

    outbox = LogOutbox(send)
    for count in (1, 2, 3):
        one = claim("see")
        for line in lines_of(count):
            outbox.tell(one, line)
    await outbox.flush()
    assert [len(item["lines"]) for item in sent] == [1, 3]
    assert caplog.messages == ["log lines were not recorded: no"]


@pytest.mark.parametrize(
    ("level", "kept"),
    [(None, []), ("warning", ["warning", "error"]), ("debug", ["debug", "info", "warning", "error"])],
)
def test_records_of_handlers_are_kept_from_a_level_on(
    level: LogLevel | None, kept: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, "shop")  # another test may have said otherwise
    told: list[Line] = []
    with keeping_records(level):
        logging.getLogger("shop").error("no handler runs")
        with about(claim("see"), told.append):
            for each in (logging.DEBUG, logging.INFO, logging.WARNING, logging.CRITICAL):
                logging.getLogger("shop").log(each, "a %s", "b")
            logging.getLogger("hwqueue.worker").error("the worker's own")
        logging.getLogger("shop").error("it has ended")
    assert [line["level"] for line in told] == kept
    assert {line["message"] for line in told} <= {"a b"}
    assert all(line["fields"] == {"logger": "shop"} for line in told)


async def test_a_finalizer_may_log_while_a_line_is_told() -> None:
    """Memory may be collected anywhere: the lock that is held must be one's own again."""

    async def send(_items: Sequence[Item]) -> None:
        raise AssertionError

    outbox, one = LogOutbox(send), claim("see")
    said: list[int] = []

    def tell(line: Line) -> None:
        said.append(line["line"])
        if len(said) == 1:
            tell_numbered(log_line("from a finalizer", "info", {}))
        with outbox._lock:
            outbox.tell(one, line)

    tell_numbered = numbered(tell)
    told = threading.Thread(target=lambda: tell_numbered(log_line("a", "info", {})), daemon=True)
    told.start()
    told.join(10)
    assert said == [1, 2]


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
