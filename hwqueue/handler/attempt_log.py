"""The log of an attempt: its lines in the form that the database keeps (sql/claim/reports.sql).

The log of the program itself is another one, `hwqueue.logs`.

A handler may log anything. What the database would not take is cut or spelled out here, so that a
line is never refused there, together with the lines of other handlers in its batch.
"""

from __future__ import annotations

import itertools
import json
import math
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, get_args

from hwqueue.client._json import check_json
from hwqueue.errors import BadArgument
from hwqueue.logs import LogLevel, TellLine

Line = dict[str, Any]
"""A line as `append_logs` takes it."""

MOST_LINES = 1000
"""Lines of a claim that are kept: its last ones."""

MOST_BYTES = 4096
"""Of a message; the fields may have as many."""

_LEVELS = get_args(LogLevel)
_EXACT = 1e15  # Postgres writes out all digits of what is larger

# One for all attempts: what they tell goes through one lock in any case. A finalizer that logs may
# run while it is held.
_numbering = threading.RLock()


def log_line(message: object, level: LogLevel, fields: Mapping[str, Any]) -> Line:
    """A line that was logged now, without its number.

    A message or fields of more than 4096 bytes are cut. NUL and what is no Unicode are spelled out.

    Raises: BadArgument: There is no such level.
    """
    if level not in _LEVELS:
        raise BadArgument(
            f"level must be one of {', '.join(_LEVELS)}, not {level!r}",
            detail={"field": "level"},
            hint='log("disk is full", level="warning")',
        )
    line: Line = {
        "at": datetime.now(UTC).isoformat(),
        "level": level,
        "message": _cut(storable(_text(message))),
    }
    return line | {"fields": _fields(fields)} if fields else line


def numbered(tell: TellLine) -> TellLine:
    """Number the lines of an attempt, from 1, in the order in which they are told."""
    numbers = itertools.count(1)

    def tell_numbered(line: Line) -> None:
        with _numbering:
            tell(line | {"line": next(numbers)})

    return tell_numbered


def _fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields as JSON that Postgres takes, or what became of them."""
    try:
        written = json.dumps(fields, default=_text, skipkeys=True)
        plain: dict[str, Any] = _plain(json.loads(written, parse_constant=str))
        check_json(plain, "fields")
        size = len(json.dumps(plain, ensure_ascii=False).encode())
    except (ValueError, TypeError, RecursionError, BadArgument) as error:
        return {"fields_left_out": _cut(storable(_text(error)), 200)}
    return plain if size <= MOST_BYTES else {"fields_left_out": f"they have {size} bytes"}


def _plain(value: Any) -> Any:
    """JSON without text that Postgres refuses, and without numbers that it writes out at length."""
    match value:
        case str():
            return storable(value)
        case float():
            is_short = value == 0 or 1 / _EXACT < math.fabs(value) < _EXACT
            return value if is_short else str(value)
        case dict():
            return {storable(key): _plain(each) for key, each in value.items()}
        case list():
            return [_plain(each) for each in value]
    return value


def _text(value: object) -> str:
    """Its text, whatever its `__str__` does."""
    try:
        return str(value)
    except Exception as error:
        return f"(no text: {type(error).__name__} in __str__)"


def storable(text: str) -> str:
    """Text that jsonb takes: no NUL, no lone surrogates."""
    return text.replace("\0", "\\0").encode(errors="backslashreplace").decode()


def _cut(text: str, most: int = MOST_BYTES) -> str:
    """The text, or its beginning and how long it was."""
    encoded = text.encode()
    if len(encoded) <= most:
        return text
    note = f" ... (cut, {len(encoded)} bytes)"
    return encoded[: most - len(note)].decode(errors="ignore") + note
