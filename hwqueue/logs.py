"""Log lines of the programs of this package, as text or as JSON, with the lease they belong to.

The library configures nothing: the command line and the child processes of its workers do. A
program with a logging configuration of its own adds `LeaseLogFilter` to its handlers.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from hwqueue.text import one_line

if TYPE_CHECKING:
    from hwqueue.types import Claim

LogFormat = Literal["text", "json"]
LogLevel = Literal["debug", "info", "warning", "error"]

TellLine = Callable[[dict[str, Any]], None]
"""Keeps a line with the attempt that logs it: see `hwqueue.handler.attempt_log`."""

LEASE_FIELDS = ("lease_id", "task", "queue", "attempt")
OF_EVERY_RECORD = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}
_NOISY = ("alembic", "httpx")

_current: ContextVar[about | None] = ContextVar("hwqueue_lease", default=None)


class LogSettings(NamedTuple):
    """How a program writes its log: the form of a line, and the lowest level."""

    form: LogFormat
    level: LogLevel


_settings: LogSettings | None = None


def lease_fields(claim: Claim) -> dict[str, Any]:
    """The fields of a record about a lease: `lease_id`, `task`, `queue`, `attempt`."""
    return {
        "lease_id": str(claim.lease_id),
        "task": claim.task_name,
        "queue": claim.queue,
        "attempt": claim.attempt,
    }


class about:  # noqa: N801 - it is called like a function, and is one for each handler that runs
    """Records that this block logs, in this thread or asyncio task, are about a lease.

    Args:
        tell_line: Keeps with the attempt what `hwqueue.worker.kept_records` finds worth it.
    """

    __slots__ = ("_before", "claim", "tell_line")

    def __init__(self, claim: Claim, tell_line: TellLine | None = None) -> None:
        self.claim = claim
        self.tell_line = tell_line

    def __enter__(self) -> None:
        self._before = _current.set(self)

    def __exit__(self, *_raised: object) -> None:
        _current.reset(self._before)


def line_teller() -> TellLine | None:
    """What keeps lines of the attempt that runs in this thread or asyncio task; None: none runs."""
    current = _current.get()
    return None if current is None else current.tell_line


class LeaseLogFilter(logging.Filter):
    """Adds `lease_id`, `task`, `queue` and `attempt` to what handlers log. It drops nothing.

    For a handler (`handler.addFilter`), not for a logger: a logger's filters do not see the records
    of the loggers below it. A record that no lease is behind has none of these fields; a format
    string that names one needs `logging.Formatter(..., defaults={"lease_id": "-"})`.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the fields, unless the record has a `lease_id` already."""
        current = _current.get()
        if current is not None and not hasattr(record, "lease_id"):
            vars(record).update(lease_fields(current.claim))
        return True


class TextFormatter(logging.Formatter):
    """Time, level, logger and message; at the end of the first line the fields of the lease.

    All other lines of a record begin with two spaces, and no character of it moves the cursor of a
    terminal: what the exception of a handler says cannot pass for a record of its own.
    """

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        """The lines."""
        return "\n  ".join(map(one_line, super().format(record).expandtabs(4).splitlines()))

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - overridden
        """The line without a traceback."""
        known = vars(record)
        fields = " ".join(f"{name}={one_line(known[name])}" for name in LEASE_FIELDS if name in known)
        head, newline, rest = super().formatMessage(record).partition("\n")
        return f"{head} [{fields}]{newline}{rest}" if fields else head + newline + rest


class JsonFormatter(logging.Formatter):
    """One JSON object in one line: `time` (UTC), `level`, `logger`, `message`, and all `extra`.

    `exception` is the traceback of `exc_info`, or the text of one; `stack` what `stack_info` asked
    for. Values that JSON has no form for are written as their text.
    """

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        elif record.exc_text:
            line["exception"] = record.exc_text
        if record.stack_info:
            line["stack"] = self.formatStack(record.stack_info)
        taken = OF_EVERY_RECORD | line.keys()
        line |= {name: value for name, value in vars(record).items() if name not in taken}
        return json.dumps(line, default=str, skipkeys=True)


_FORMATTERS: Mapping[LogFormat, type[logging.Formatter]] = {"text": TextFormatter, "json": JsonFormatter}


def set_up(settings: LogSettings) -> None:
    """Write the records of all loggers to standard error; for a process of our own.

    What alembic and httpx say at their level INFO is left out, unless the level is debug.
    """
    global _settings  # noqa: PLW0603 - one process has one log
    _settings = settings
    handler = logging.StreamHandler()
    handler.setFormatter(_FORMATTERS[settings.form]())
    handler.addFilter(LeaseLogFilter())
    level = logging.getLevelNamesMapping()[settings.level.upper()]
    logging.basicConfig(level=level, handlers=[handler], force=True)
    for name in _NOISY:
        logging.getLogger(name).setLevel(logging.NOTSET if level < logging.INFO else logging.WARNING)


def settings_in_force() -> LogSettings | None:
    """What `set_up` was called with, for child processes; None: it was not called."""
    return _settings
