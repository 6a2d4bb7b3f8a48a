"""The live screen of `hwqueue top`, driven by its keys without a terminal."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from xml.etree import ElementTree

import psycopg
import pytest

from hwqueue.cli.top.reading import Reading
from hwqueue.types import PendingReason
from tests.unit.top_rows import ago, pending, queue, reading

textual = pytest.importorskip("textual")

from textual.pilot import Pilot  # noqa: E402
from textual.widgets import Input  # noqa: E402

from hwqueue.cli.top.screen import Facts, Top  # noqa: E402

pytestmark = pytest.mark.thorough

SIZE = (80, 24)


class FakeSource:
    """Gives the readings and errors that it is told, the last one again and again."""

    def __init__(self, *readings: Reading | Exception) -> None:
        self._readings = list(readings)
        self.reads = 0
        self.is_closed = False
        self.explained: list[int] = []

    async def read(self) -> Reading:
        self.reads += 1
        found = self._readings.pop(0) if len(self._readings) > 1 else self._readings[0]
        if isinstance(found, Exception):
            raise found
        return found

    async def explain(self, reason: PendingReason) -> Sequence[str]:
        self.explained.append(reason.class_id)
        if reason.class_id == 9:
            raise psycopg.OperationalError("server closed the connection\nunexpectedly")
        return ["no live node can run it", "What would help", "  add a node with H100"]

    async def close(self) -> None:
        self.is_closed = True


@asynccontextmanager
async def shown(
    *readings: Reading | Exception, size: tuple[int, int] = SIZE, interval: timedelta = timedelta(hours=1)
) -> AsyncIterator[tuple[Pilot[None], FakeSource]]:
    """The screen with these readings; another one is read when `space` is pressed."""
    source = FakeSource(*readings)
    app = Top(source, "jobs@db", interval)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()  # until what was read is in the table
        await pilot.pause()  # until the table has the height of its rows
        yield pilot, source


async def press(pilot: Pilot[None], *keys: str) -> None:
    """Press keys, and wait until the screen shows what they do."""
    await pilot.press(*keys)
    await pilot.pause()


def lines_of(pilot: Pilot[None]) -> list[str]:
    """What the terminal shows."""
    drawn = ElementTree.fromstring(pilot.app.export_screenshot(simplify=True))
    cells: dict[float, dict[int, str]] = {}
    for found in drawn.iter("{http://www.w3.org/2000/svg}text"):
        if "clip-path" not in found.attrib:  # the title of the window
            continue
        row = cells.setdefault(float(found.attrib["y"]), {})
        row[round(float(found.attrib["x"]) / 12.2)] = (found.text or "").replace("\xa0", " ")
    lines = []
    for _, row in sorted(cells.items()):
        line = ""
        for column, text in sorted(row.items()):
            line = line.ljust(column) + text
        lines.append(line.rstrip())
    return lines


def text_of(pilot: Pilot[None]) -> str:
    return "\n".join(lines_of(pilot))


def first_cells(pilot: Pilot[None]) -> list[str]:
    """The first cell of each row of the table that is shown."""
    lines = lines_of(pilot)
    header = next(
        number for number, line in enumerate(lines) if re.match(r" (queue|why|node|time|lease)\b", line)
    )
    return [line.split("  ")[0].strip() for line in lines[header + 1 :] if line.strip()][:-1]


async def test_what_is_seen_first() -> None:
    async with shown(reading()) as (pilot, _source):
        lines = lines_of(pilot)
        assert max(map(len, lines)) <= 80
        assert lines[0].startswith(" hwqueue top  jobs@db  every 3600 s  as of ")
        assert lines[1].startswith("leases  1,208 pending, 4 running")
        assert lines[2] == "stuck   412 that no node may run, 80 whose nodes are busy"
        assert "1 Queues" in text_of(pilot)
        assert "4 Events" in text_of(pilot)
        assert first_cells(pilot) == ["mail", "renders", "reports"]
        assert "q Quit" in lines[-1]
        await press(pilot, "4")
        assert "queue reports was paused" in text_of(pilot)
        await press(pilot, "question_mark")
        assert "all about the row" in text_of(pilot)


async def test_tables_by_number_and_sorting() -> None:
    tables = {
        "1": ["mail", "renders", "reports"],
        "2": ["no match", "contended", "waiting"],
        "3": ["node-1", "node-2", "node-3"],
        "5": ["00000001", "00000002", "00000003"],
    }
    async with shown(reading()) as (pilot, _source):
        for key, cells in tables.items():
            await press(pilot, "4", key)
            assert first_cells(pilot) == cells
        await press(pilot, "2", "s", "s", "r")
        assert "leases ↑" in text_of(pilot)
        assert first_cells(pilot) == ["contended", "no match", "waiting"]


async def test_a_filter_holds_until_it_is_taken_away() -> None:
    async with shown(reading()) as (pilot, _source):
        await press(pilot, "2", "slash", "h", "1", "0", "0", "enter")
        assert first_cells(pilot) == ["no match"]
        assert "1 of 3 kinds of leases: those with 'h100'" in text_of(pilot)
        await press(pilot, "space")
        assert first_cells(pilot) == ["no match"]
        await press(pilot, "1")
        assert len(first_cells(pilot)) == 3
        await press(pilot, "2", "escape")
        assert len(first_cells(pilot)) == 3
        assert not pilot.app.query_one("#filter", Input).display


async def test_the_cursor_stays_on_its_row() -> None:
    """Also when rows come and go around it."""
    later = [queue("art"), queue("renders", pending=9), queue("zoo")]
    async with shown(reading(), reading(queues=later)) as (pilot, _source):
        await press(pilot, "down", "space")
        assert first_cells(pilot) == ["art", "renders", "zoo"]
        await press(pilot, "enter")
        assert "Queues: renders" in text_of(pilot)


async def test_without_an_answer_the_last_values_stay() -> None:
    gone = psycopg.OperationalError("connection refused\nIs the server running?")
    async with shown(reading(), gone, reading(queues=[queue("new")])) as (pilot, source):
        await press(pilot, "space")
        assert "NO ANSWER: connection refused" in lines_of(pilot)[0]
        assert first_cells(pilot) == ["mail", "renders", "reports"]
        assert pilot.app.screen.has_class("stale") or pilot.app.has_class("stale")
        await press(pilot, "space")
        assert "NO ANSWER" not in text_of(pilot)
        assert first_cells(pilot) == ["new"]
    assert source.is_closed


async def test_no_answer_nothing_to_show_and_a_narrow_terminal() -> None:
    async with shown(psycopg.OperationalError()) as (pilot, _source):
        assert "NO ANSWER: OperationalError" in text_of(pilot)
    async with shown(reading(queues=[], pending=[], nodes=[], events=[])) as (pilot, _source):
        assert "no queues; make one: hwqueue queue create NAME" in text_of(pilot)
        await press(pilot, "enter", "s", "r")
    async with shown(reading(), size=(40, 12)) as (pilot, _source):
        assert max(map(len, lines_of(pilot))) <= 40


async def test_pausing() -> None:
    async with shown(reading()) as (pilot, source):
        await press(pilot, "p")
        assert "PAUSED" in lines_of(pilot)[0]
        assert source.reads == 1
        await press(pilot, "space")
        assert source.reads == 2
        await press(pilot, "p")
        assert "PAUSED" not in text_of(pilot)
        assert source.reads == 3


async def test_why_a_class_waits() -> None:
    async with shown(reading()) as (pilot, source):
        await press(pilot, "2", "enter")
        await pilot.pause()
        text = text_of(pilot)
        assert source.explained == [7]
        assert "no live node can run it" in text
        assert "add a node with H100" in text
        assert "gpu_model in H100, 8 GPU" in text
        await press(pilot, "escape")
        assert not isinstance(pilot.app.screen, Facts)
        await press(pilot, "down", "enter")
        await pilot.pause()
        assert "no answer: server closed the connection" in text_of(pilot)


async def test_odd_text_is_text() -> None:
    odd = [pending(1, "[bold]x[/] \x1b[2J", oldest_at=ago(days=3))]
    async with shown(reading(pending=odd), size=(120, 30)) as (pilot, _source):
        await press(pilot, "2")
        assert "[bold]x[/] \\x1b[2J" in text_of(pilot)
        await press(pilot, "enter")
        assert "[bold]x[/] \\x1b[2J" in text_of(pilot)
