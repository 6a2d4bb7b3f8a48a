"""One frame as text, for scripts and for terminals that nobody sits at."""

from collections.abc import Iterator
from typing import Any

from hwqueue.cli.top.reading import Reading
from hwqueue.cli.top.summary import summary
from hwqueue.cli.top.tables import TABLES, Order, Table, arranged


def frame(reading: Reading, *, rows: int, width: int | None = None) -> str:
    """The summary and the first `rows` of each table.

    Args:
        width: Longer lines are cut; None: none is.
    """
    lines = [f"hwqueue top, {reading.at.astimezone():%Y-%m-%d %H:%M:%S %Z}", *summary(reading)]
    for table in TABLES:
        lines += ["", *_lines(table, reading, rows)]
    return "\n".join(line[:width].rstrip() for line in lines)


def _lines(table: Table[Any], reading: Reading, rows: int) -> Iterator[str]:
    found = arranged(table, reading, Order(), "")
    more = f" (the first {rows})" if len(found) > rows else ""
    yield f"{table.title}{more}"
    if not found:
        yield f"  {table.empty}"
        return
    cells = [[column.title for column in table.columns], *(cells for _, cells in found[:rows])]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    numbers = [column.is_number for column in table.columns]
    for line in cells:
        padded = [
            text.rjust(width) if is_number else text.ljust(width)
            for text, width, is_number in zip(line, widths, numbers, strict=True)
        ]
        yield "  " + "  ".join(padded)
