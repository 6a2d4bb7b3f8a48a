"""What commands print, and what the program exits with.

Rows are a table on a terminal, aligned text in a pipe. With --json what the client returned is
printed whole, numbers as numbers and times as RFC 3339. Errors go to stderr.
"""

import dataclasses
import json
import traceback
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import IntEnum
from pathlib import Path
from typing import Any, Self
from uuid import UUID

import psycopg
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from hwqueue import errors
from hwqueue.cli.options import Options, options_of
from hwqueue.cli.tables import Item, Row, columns_of, flat, grid_of, is_list_of_records, table_of
from hwqueue.driver_errors import hint_of
from hwqueue.errors import HwqueueError
from hwqueue.hints import message_of, of_error


class ExitCode(IntEnum):
    """What the program exits with."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    SCHEMA = 4
    CANCELLED = 6
    TIMEOUT = 7

    @classmethod
    def of(cls, state: str) -> Self:
        """Of a command that has followed a lease, or a run, to its end."""
        return {"completed": cls.OK, "failed": cls.FAILED, "cancelled": cls.CANCELLED}[state]


# The first that fits.
_EXIT_CODES: Mapping[ExitCode, tuple[type[HwqueueError], ...]] = {
    ExitCode.SCHEMA: (errors.SchemaError,),
    ExitCode.TIMEOUT: (errors.WaitTimeout,),
    ExitCode.NOT_FOUND: (
        *(errors.LeaseNotFound, errors.NodeUnknown, errors.QueueUnknown, errors.TokenUnknown),
        *(errors.WebhookUnknown, errors.ClassUnknown, errors.WorkflowUnknown, errors.RunNotFound),
        *(errors.GangNotFound, errors.EverywhereNotFound, errors.ScheduleUnknown, errors.LimitUnknown),
    ),
    ExitCode.USAGE: (
        *(errors.WorkflowInvalid, errors.WorkflowTooLarge, errors.StepUnknown),
        *(
            errors.BadArgument,
            errors.ConstraintError,
            errors.ConfigError,
            errors.ScheduleInvalid,
            errors.LimitInvalid,
        ),
    ),
}

# Characters that move a cursor, change colours or the order of text, or begin a line, as Python
# spells them: what users wrote must not look like output of ours, on a terminal or in a pipe.
_DIRECTIONS = (0x061C, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A))
_CONTROLS = {
    code: chr(code).encode("unicode_escape").decode()
    for code in (*range(32), *range(127, 160), 0x2028, 0x2029, *_DIRECTIONS)
}
_CONTROLS_IN_TEXT = {code: text for code, text in _CONTROLS.items() if chr(code) not in "\n\t"}


def fields_of(item: Any) -> dict[str, object]:
    """The fields of a dataclass: what --json prints of it."""
    return {field.name: getattr(item, field.name) for field in dataclasses.fields(item)}


def show_items(
    ctx: typer.Context,
    items: Sequence[Item],
    row: Callable[[Item], Row],
    *,
    fields: Callable[[Item], Row] = fields_of,
    empty: str = "nothing to show",
) -> None:
    """Print what the client returned: `row` of each for a person, all its `fields` as JSON."""
    chosen = fields if options_of(ctx).json else row
    show_rows(ctx, [chosen(item) for item in items], empty=empty)


def say_more(ctx: typer.Context, page: Sequence[object], limit: int, after: str) -> None:
    """Say which options ask for what is behind a full page; its last item is `{0}` in them."""
    if len(page) == limit:
        say(ctx, f"there may be more: {after.format(page[-1])}")


def show_item(
    ctx: typer.Context, item: Item, facts: Callable[[Item], Row], *, fields: Callable[[Item], Row] = fields_of
) -> None:
    """Print one thing that the client returned: `facts` for a person, all its `fields` as JSON."""
    show_one(ctx, (fields if options_of(ctx).json else facts)(item))


def show_rows(ctx: typer.Context, rows: Sequence[Row], *, empty: str = "nothing to show") -> None:
    """Print rows that share their keys; `empty` is said to a person when there are none."""
    if options_of(ctx).json:
        typer.echo(to_json([dict(row) for row in rows]))
    elif not rows:
        typer.echo(empty, err=True)
    elif Console().is_terminal:
        table, least, left_out = table_of(rows, Console().width, plain_text)
        _unbroken(table, least)
        if left_out:
            said = ", ".join(map(_heading, left_out))
            say(ctx, f"the terminal is too narrow for {said}; --json has all")
    else:
        _print_aligned([list(rows[0]), *(list(map(plain_text, row.values())) for row in rows)])


def show_one(ctx: typer.Context, facts: Row) -> None:
    """Print one thing: a line for each of its facts, and below them a table for each list in it."""
    if options_of(ctx).json:
        typer.echo(to_json(dict(facts)))
        return
    listed = {name: value for name, value in facts.items() if is_list_of_records(value)}
    lines = {name: value for name, value in facts.items() if name not in listed}
    if Console().is_terminal:
        _unbroken(*grid_of({_heading(name): value for name, value in lines.items()}, plain_text))
    elif lines:
        _print_aligned([[name, plain_text(value)] for name, value in lines.items()])
    for name, records in listed.items():
        typer.echo(f"\n{_heading(name)}:")
        show_rows(ctx, columns_of(records))


def cell(value: object) -> Text:
    """A cell of a table on a terminal. What users wrote is no markup, in one line."""
    return Text(flat(value, plain_text))


def plain_text(value: object) -> str:
    """The same without a table."""
    return _text(value).translate(_CONTROLS)


def readable(text: str) -> str:
    """Text of others for a screen: its lines are its own, and nothing in it moves the cursor."""
    return text.translate(_CONTROLS_IN_TEXT)


def say(ctx: typer.Context, message: str) -> None:
    """Tell a person something; on stderr, so that it is never taken for data."""
    if not options_of(ctx).json:
        typer.echo(readable(message), err=True)


def to_json(value: object) -> str:
    """JSON text; times as RFC 3339, spans in seconds, dataclasses as objects."""
    return json.dumps(value, indent=2, default=_plain)


def to_json_line(value: object) -> str:
    """The same in one line, for streams."""
    return json.dumps(value, default=_plain)


def report_error(error: Exception, options: Options) -> ExitCode:
    """Say on stderr what went wrong and what to do; return what to exit with."""
    if options.verbose:
        typer.echo("".join(traceback.format_exception(error)), err=True)
    message, hint, detail, sqlstate = _explain(error)
    if options.json:
        content = {"error": message, "sqlstate": sqlstate, "detail": detail, "hint": hint}
        typer.echo(to_json(content), err=True)
    else:
        typer.echo(_indented(f"error: {message}"), err=True)
        if hint:
            typer.echo(_indented(f"hint: {hint}"), err=True)
    fitting = (code for code, kinds in _EXIT_CODES.items() if isinstance(error, kinds))
    return next(fitting, ExitCode.FAILED)


def report_usage_error(error: Any) -> ExitCode:
    """Say on stderr, as JSON, what is wrong with a line; return what to exit with.

    `error` is Typer's UsageError. For a person Typer says it itself.
    """
    # A group without a command has printed its help, and has nothing more to say.
    message = error.format_message() or "Missing command."
    hint = f"see: {error.ctx.command_path} --help" if error.ctx else None
    content = {"error": message, "sqlstate": None, "detail": None, "hint": hint}
    typer.echo(to_json(content), err=True)
    return ExitCode.USAGE


def _explain(error: Exception) -> tuple[str, str | None, object, str | None]:
    """Message, hint, detail and SQLSTATE of an error."""
    if isinstance(error, HwqueueError):
        return message_of(error), of_error(error, "cli"), error.detail, error.sqlstate
    if isinstance(error, psycopg.Error):
        message = error.diag.message_primary or str(error).strip()
        hint = error.diag.message_hint or hint_of(error)
        return message, hint, error.diag.message_detail, error.sqlstate
    # Such as a FileNotFoundError: its message alone can be as short as a number.
    hint = "add --verbose to see where it came from"
    return str(error) or type(error).__name__, hint, None, None


def _indented(text: str) -> str:
    """Text of several lines, of which only the first begins at the margin."""
    return text.translate(_CONTROLS_IN_TEXT).replace("\n", "\n  ")


def _unbroken(table: Table, least: int) -> None:
    """Print a table; where it must be wider than the terminal, that breaks its lines itself."""
    Console(width=max(Console().width, least)).print(table, crop=False)


def _print_aligned(lines: list[list[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        typer.echo("  ".join(map(str.ljust, line, widths)).rstrip())


def _heading(name: str) -> str:
    return name.replace("_", " ")


def _text(value: object) -> str:
    """One cell for a person."""
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case datetime():
            return value.isoformat(sep=" ", timespec="seconds")
        case bytes():
            return f"\\x{value.hex()}"
        case Mapping() | list() | tuple():
            return json.dumps(value, default=_plain)
        case _:
            is_record = dataclasses.is_dataclass(value)
            return json.dumps(value, default=_plain) if is_record else str(value)


def _plain(value: object) -> Any:
    """What `json` cannot write by itself."""
    match value:
        case datetime():
            return value.isoformat()
        case timedelta():
            return value.total_seconds()
        case UUID() | Path():
            return str(value)
        case bytes():
            return f"\\x{value.hex()}"
        case Mapping():
            return dict(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    raise TypeError(f"cannot write {type(value).__name__} as JSON")
