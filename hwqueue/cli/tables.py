"""Rows as a table that fits a terminal.

What is copied (ids, names, times, numbers) stays whole, in one line. Texts of several words take
the room that is left, in several lines where they must. Where even that is too wide, columns are
left out, the least wanted ones first; never the first one nor ids.
"""

import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from datetime import datetime
from operator import attrgetter
from typing import Any, TypeVar

from rich.table import Table
from rich.text import Text

Row = Mapping[str, object]
Item = TypeVar("Item")

_LONGEST_WHOLE = 44  # of what has no spaces: a UUID has 36
_NARROWEST_TEXT = 24
_UUID = 36
_ID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-")
_FRAME = 3  # of a column; and one more in all
_LEAST_WANTED = (
    *("revoked_login", "created_login", "revoked_by", "login", "created_by", "actor", "profiles"),
    *("reach", "cores_free", "gpus_free", "bytes", "priority", "attempt", "attempts", "starts"),
    *("delivered", "place", "lasted", "free", "match", "matching", "codes", "queues", "tenant"),
    *("version", "used_at", "revoked_at", "created_at", "next_at", "code", "oldest", "classes"),
    *("size", "taints", "labels", "after", "role", "node", "queue", "task"),
)
_MOST_WANTED = ("message", "why", "why_not", "reason", "error", "returned", "answer", "detail")


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    cells: Sequence[str]
    heading: str
    is_id: bool

    @property
    def width(self) -> int:
        """With nothing broken."""
        return max(map(len, self.cells))

    @property
    def is_whole(self) -> bool:
        """Whether it is something to copy or to compare, not to read."""
        spaced = any(" " in cell and not _is_time(cell) for cell in self.cells)
        return self.is_id or (self.width <= _LONGEST_WHOLE and not spaced)

    @property
    def least(self) -> int:
        """How narrow it may become."""
        words = [len(word) for word in self.heading.split()] or [0]
        if self.is_whole:
            return max(self.width, *words)
        narrowest = _UUID if any(map(_ID.search, self.cells)) else _NARROWEST_TEXT
        return max(min(self.width, narrowest), *words)


def row_of(
    kind: type[Item], headings: str, **made: Callable[[Item], object]
) -> Callable[[Item], dict[str, object]]:
    """What makes rows of things of a kind: a cell for each heading, in this order.

    Args:
        headings: Names of attributes, or `heading=attribute`.
        made: What returns a cell that is none of the attributes.
    """
    known = {each.name for each in fields(kind)} | vars(kind).keys()  # type: ignore[arg-type]
    cells: dict[str, Callable[[Item], object]] = {}
    for each in headings.split():
        heading, _, attribute = each.partition("=")
        name = attribute or heading
        assert heading in made or name in known, f"{kind.__name__} has no {name}"
        cells[heading] = made.get(heading, attrgetter(name))
    return lambda item: {heading: cell(item) for heading, cell in cells.items()}


def table_of(rows: Sequence[Row], width: int, spell: Callable[[object], str]) -> tuple[Table, int, list[str]]:
    """The table, how wide it is at least, and the columns that were left out for want of width.

    Args:
        rows: They share their keys.
        spell: Writes a cell.
    """
    columns = [_column(name, [row[name] for row in rows], spell) for name in rows[0]]
    columns, left_out = _fitting(columns, width)
    table = Table(header_style="bold")
    for column in columns:
        table.add_column(
            Text(column.heading), no_wrap=column.is_whole, min_width=column.least, overflow="fold"
        )
    for number in range(len(rows)):
        table.add_row(*(Text(column.cells[number]) for column in columns))
    return table, _width(columns), left_out


def grid_of(facts: Row, spell: Callable[[object], str]) -> tuple[Table, int]:
    """A line for each fact, and how wide they are at least: no word is broken."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    written = {name: flat(value, spell) for name, value in facts.items()}
    for name, text in written.items():
        table.add_row(Text(name, style="bold"), Text(text))
    names = max(map(len, written), default=0)
    longest = max((len(word) for text in written.values() for word in text.split()), default=0)
    return table, names + 2 + longest + 2


def is_list_of_records(value: object) -> bool:
    """Whether it is a list of things that have several facts each."""
    return isinstance(value, list | tuple) and bool(value) and all(map(is_dataclass, value))


def columns_of(records: Any) -> list[Row]:
    """The facts of such a list as rows, without those that none of them has."""
    rows = [{each.name: getattr(record, each.name) for each in fields(record)} for record in records]
    known = [name for name in rows[0] if any(row[name] is not None for row in rows)]
    return [{name: row[name] for name in known} for row in rows]


def flat(value: object, spell: Callable[[object], str]) -> str:
    """JSON as people write it in a line: `zone=a, gpu=2`; a list with commas."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, Mapping | list | tuple) and not value:
        return spell(None)
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={flat(each, spell)}" for key, each in value.items())
    if isinstance(value, list | tuple) and not any(map(_is_nested, value)):
        return ", ".join(flat(each, spell) for each in value)
    written = spell(value)
    return f"{written[:-6]}Z" if isinstance(value, datetime) and written.endswith("+00:00") else written


def _column(name: str, values: Sequence[object], spell: Callable[[object], str]) -> _Column:
    is_id = any(isinstance(value, uuid.UUID) for value in values)
    return _Column(name, [flat(value, spell) for value in values], name.replace("_", " "), is_id)


def _fitting(columns: list[_Column], width: int) -> tuple[list[_Column], list[str]]:
    """The columns for which there is room, and the names of the others."""
    kept = list(columns)
    last_first = columns[:0:-1]
    for column in sorted(last_first, key=_wanted):
        if not column.is_id and _width(kept) > width:
            kept.remove(column)
    for column in sorted(columns, key=_wanted, reverse=True):  # narrow ones may have room again
        if column not in kept and _width([*kept, column]) <= width:
            kept.append(column)
    left_out = [column.name for column in columns if column not in kept]
    return [column for column in columns if column in kept], left_out


def _width(columns: Sequence[_Column]) -> int:
    return sum(column.least + _FRAME for column in columns) + 1


def _wanted(column: _Column) -> int:
    """What sorts the least wanted columns first."""
    if column.name in _LEAST_WANTED:
        return _LEAST_WANTED.index(column.name)
    return len(_LEAST_WANTED) + (1 if column.name in _MOST_WANTED else 0)


def _is_time(cell: str) -> bool:
    """As times are written: the one thing with a space that is not to be broken."""
    return len(cell) >= 19 and cell[10] == " " and cell[:4].isdecimal() and cell[4] == "-"


def _is_nested(value: Any) -> bool:
    return isinstance(value, Mapping | list | tuple)
