"""The live screen of `hwqueue top`. It needs Textual, so it is imported only when it is shown."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, ClassVar

import psycopg
from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.coordinate import Coordinate
from textual.css.query import NoMatches
from textual.screen import ModalScreen
from textual.widgets import DataTable, Footer, Input, Static, TabbedContent, TabPane

from hwqueue.cli.output import fields_of, plain_text
from hwqueue.cli.top.reading import Reading, Source
from hwqueue.cli.top.summary import summary
from hwqueue.cli.top.tables import PENDING, TABLES, Order, Table, arranged
from hwqueue.errors import HwqueueError
from hwqueue.stopping import waited
from hwqueue.text import first_line

HELP = (
    ("1 2 3 4 5", "queues, what is pending and why, nodes, events, what runs"),
    ("arrows, page up and down", "move in the table"),
    ("enter", "all about the row; of what is pending: why, and what would help"),
    ("s", "sort by the next column; after the last one as the database returns it"),
    ("r", "sort the other way round"),
    ("/", "show rows with a text only; escape shows all again"),
    ("p", "pause; the picture stays as it is"),
    ("space", "read now"),
    ("q", "leave"),
)


class Rows(DataTable[Text]):
    """A table that is told all of its rows again and again and changes what has changed."""

    def __init__(self, table: Table[Any]) -> None:
        super().__init__(id=table.name, cursor_type="row")
        self._titles: list[str] = []
        self._keys: list[str] = []
        self._cells: list[list[str]] = []
        self._is_number = [column.is_number for column in table.columns]

    @property
    def chosen(self) -> str | None:
        """The key of the row that the cursor is on."""
        return self._keys[self.cursor_row] if self.cursor_row < len(self._keys) else None

    def show(self, titles: list[str], keys: list[str], cells: list[list[str]]) -> None:
        """Show these rows; the cursor stays on its row wherever that goes."""
        if (titles, keys) == (self._titles, self._keys):
            for row, (was, now) in enumerate(zip(self._cells, cells, strict=True)):
                for column, text in enumerate(now):
                    if was[column] != text:
                        place = Coordinate(row, column)
                        self.update_cell_at(place, self._cell(column, text), update_width=True)
        else:
            self._rebuild(titles, keys, cells)
        self._titles, self._keys, self._cells = titles, keys, cells

    def _rebuild(self, titles: list[str], keys: list[str], cells: list[list[str]]) -> None:
        chosen, top = self.chosen, self.scroll_y
        self.clear(columns=True)
        for column, title in enumerate(titles):
            self.add_column(self._cell(column, title))
        for key, row in zip(keys, cells, strict=True):
            self.add_row(*(self._cell(column, text) for column, text in enumerate(row)), key=key)
        if chosen in keys:
            self.move_cursor(row=keys.index(chosen), animate=False, scroll=False)
        # how tall the table is it knows only after a refresh
        self.call_after_refresh(self.scroll_to, y=top, animate=False)

    def _cell(self, column: int, text: str) -> Text:
        return Text(text, justify="right" if self._is_number[column] else "left", no_wrap=True)


class Facts(ModalScreen[None]):
    """All about one thing; lines that take time come later."""

    BINDINGS: ClassVar[list[BindingType]] = [("escape,enter,q,question_mark", "leave", "Close")]

    def __init__(
        self,
        title: str,
        facts: Sequence[tuple[str, str]],
        later: Callable[[], Awaitable[Sequence[str]]] | None = None,
    ) -> None:
        super().__init__()
        self._title = title
        self._facts = facts
        self._later = later

    def compose(self) -> ComposeResult:
        """Lay out."""
        widest = max((len(name) for name, _ in self._facts), default=0)
        lines = [f"{name:{widest}}  {text}" for name, text in self._facts]
        with VerticalScroll() as box:
            box.border_title = self._title
            box.border_subtitle = "esc closes"
            if self._later is not None:
                yield Static("asking why ...", id="later", markup=False)
            yield Static("\n".join(lines), id="facts", markup=False)

    def on_mount(self) -> None:
        """Ask for what comes later."""
        if self._later is not None:
            self.run_worker(self._ask(self._later))

    async def _ask(self, later: Callable[[], Awaitable[Sequence[str]]]) -> None:
        try:
            text = "\n".join(map(plain_text, await later()))
        except (HwqueueError, psycopg.Error) as error:
            text = f"no answer: {first_line(error) or type(error).__name__}"
        self.query_one("#later", Static).update(text + "\n")

    def action_leave(self) -> None:
        """Close."""
        self.dismiss()


class Top(App[None]):
    """The screen.

    Args:
        source: Where readings come from; closed at the end.
        where: What is looked at, for the title.
        interval: Wait between two readings.
    """

    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #title { height: 1; text-style: bold reverse; }
    #summary { height: 4; }
    #title, #summary { text-wrap: nowrap; text-overflow: ellipsis; }
    TabbedContent, ContentSwitcher, TabPane, DataTable { height: 1fr; }
    TabPane { padding: 0; }
    .note { height: 1; }
    #filter { display: none; height: 1; border: none; padding: 0; }
    .stale #summary, .stale DataTable { opacity: 60%; text-style: dim; }
    Facts { align: center middle; }
    Facts VerticalScroll { width: 90%; max-height: 90%; height: auto; border: solid; padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        *(
            Binding(str(number), f"look_at('{table.name}')", table.title, show=False)
            for number, table in enumerate(TABLES, start=1)
        ),
        ("slash", "filter", "Filter"),
        ("s", "sort", "Sort"),
        ("r", "reverse", "Reverse"),
        ("p", "pause", "Pause"),
        ("space", "read_now", "Read now"),
        ("question_mark", "help", "Keys"),
        ("q", "quit", "Quit"),
        Binding("escape", "all_rows", "All rows", show=False),
    ]

    def __init__(self, source: Source, where: str, interval: timedelta) -> None:
        super().__init__()
        self._source = source
        self._where = where
        self._interval = interval
        self._seconds = interval.total_seconds()
        self._reading: Reading | None = None
        self._error: str | None = None
        self._is_paused = False
        self._wake = asyncio.Event()
        self._orders = {table.name: Order() for table in TABLES}
        self._wanted = {table.name: "" for table in TABLES}

    def compose(self) -> ComposeResult:
        """Lay out."""
        yield Static(id="title", markup=False)
        yield Static("reading ...", id="summary", markup=False)
        with TabbedContent(initial=f"tab-{TABLES[0].name}"):
            for number, table in enumerate(TABLES, start=1):
                with TabPane(f"{number} {table.title}", id=f"tab-{table.name}"):
                    yield Static(id=f"note-{table.name}", classes="note", markup=False)
                    yield Rows(table)
        yield Input(id="filter", placeholder="show rows with this text only")
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Begin to read."""
        self._rows.focus()
        self.run_worker(self._read_regularly())

    async def on_unmount(self) -> None:
        """End."""
        await self._source.close()

    @property
    def _table(self) -> Table[Any]:
        """The one that is shown."""
        active = self.query_one(TabbedContent).active.removeprefix("tab-")
        return next(table for table in TABLES if table.name == active)

    @property
    def _rows(self) -> Rows:
        return self.query_one(f"#{self._table.name}", Rows)

    async def _read_regularly(self) -> None:
        while True:
            self._wake.clear()
            begun = time.monotonic()
            try:
                self._reading, self._error = await self._source.read(), None
            except (HwqueueError, psycopg.Error) as error:
                self._error = first_line(error) or type(error).__name__
            self._seconds = wait_after(time.monotonic() - begun, self._interval)
            with suppress(NoMatches):  # the screen is just being taken down
                self._draw()
            await self._wait()

    async def _wait(self) -> None:
        """A while, and then as long as it is paused; less when somebody asks."""
        await waited(self._wake, self._seconds)
        if self._is_paused:
            await self._wake.wait()

    def _draw(self) -> None:
        """Show the last reading, grey when the one after it failed."""
        title, reading = [f" hwqueue top  {self._where}"], self._reading
        if self._error is not None:
            title.append(f"NO ANSWER: {self._error}")
        title.append("PAUSED" if self._is_paused else f"every {round(self._seconds, 1):g} s")
        if reading is not None:
            title.append(f"as of {reading.at.astimezone():%H:%M:%S}")
        self.query_one("#title", Static).update("  ".join(title))
        self.set_class(self._error is not None, "stale")
        if reading is not None:
            self.query_one("#summary", Static).update("\n".join(summary(reading)))
            self._draw_table(reading)

    def _draw_table(self, reading: Reading) -> None:
        table, order = self._table, self._orders[self._table.name]
        wanted = self._wanted[table.name]
        found = arranged(table, reading, order, wanted)
        titles = [column.title for column in table.columns]
        if order.column is not None:
            is_falling = table.columns[order.column].is_number != order.is_reversed
            titles[order.column] += " ↓" if is_falling else " ↑"
        self._rows.show(titles, [table.key(row) for row, _ in found], [cells for _, cells in found])
        self.query_one(f"#note-{table.name}", Static).update(self._note(reading, len(found)))

    def _note(self, reading: Reading, shown: int) -> str:
        """What stands above a table: what is there, and what is left out."""
        table, wanted = self._table, self._wanted[self._table.name]
        read = len(table.rows(reading))
        if read == 0:
            return table.empty
        many = f"{'the first ' if table.name in reading.cut else ''}{read:,} {table.noun}"
        return f"{shown:,} of {many}: those with {wanted!r}" if wanted else many

    def on_tabbed_content_tab_activated(self) -> None:
        """Another table: draw it, and let keys go there."""
        if self._reading is not None:
            self._draw_table(self._reading)
        self._rows.focus()

    def on_data_table_row_selected(self) -> None:
        """Enter on a row: all about it."""
        table, chosen = self._table, self._rows.chosen
        if self._reading is None or chosen is None:
            return
        row = next((row for row in table.rows(self._reading) if table.key(row) == chosen), None)
        if row is None:
            return
        later = None
        if table.name == PENDING.name:
            reason = row
            later = lambda: self._source.explain(reason)  # noqa: E731
        self.push_screen(Facts(f"{table.title}: {chosen}", facts_of(row), later))

    def action_look_at(self, name: str) -> None:
        """Show another table."""
        self.query_one(TabbedContent).active = f"tab-{name}"

    def action_sort(self) -> None:
        """Sort by the next column."""
        name = self._table.name
        self._orders[name] = self._orders[name].next(len(self._table.columns))
        self._draw()

    def action_reverse(self) -> None:
        """Sort the other way round."""
        name = self._table.name
        self._orders[name] = self._orders[name].turned()
        self._draw()

    def action_filter(self) -> None:
        """Ask for a text."""
        field = self.query_one("#filter", Input)
        field.value = self._wanted[self._table.name]
        field.display = True
        field.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while it is typed."""
        self._wanted[self._table.name] = event.value
        self._draw()

    def on_input_submitted(self) -> None:
        """Keep it, and go back to the table."""
        self.query_one("#filter", Input).display = False
        self._rows.focus()

    def action_all_rows(self) -> None:
        """Filter no more."""
        self._wanted[self._table.name] = ""
        self.query_one("#filter", Input).display = False
        self._rows.focus()
        self._draw()

    def action_pause(self) -> None:
        """Stop reading, or go on."""
        self._is_paused = not self._is_paused
        if not self._is_paused:
            self._wake.set()
        self._draw()

    def action_read_now(self) -> None:
        """Read now, also while paused."""
        self._wake.set()

    def action_help(self) -> None:
        """Show the keys."""
        self.push_screen(Facts("keys", HELP))


def wait_after(took: float, interval: timedelta) -> float:
    """Seconds to the next reading: so long that a server with slow answers is left alone mostly."""
    return max(interval.total_seconds(), 4 * took)


def facts_of(row: Any) -> list[tuple[str, str]]:
    """Every field of a row, with its name."""
    return [
        (name.replace("_", " "), plain_text(getattr(value, "words", value)))
        for name, value in fields_of(row).items()
    ]
