"""Records of `logging` that are kept with the attempt that makes them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from hwqueue import logs
from hwqueue.handler.attempt_log import log_line
from hwqueue.logs import LogLevel

_LEVELS: tuple[LogLevel, ...] = ("error", "warning", "info")


class KeepingHandler(logging.Handler):
    """Keeps what handlers log with the attempt, as `context.log` does.

    The field `logger` names the logger, the other fields are those of `extra`; a traceback stands
    below the message. What hwqueue itself logs is not the handler's, and not kept.
    """

    def __init__(self, level: LogLevel) -> None:
        super().__init__(level.upper())
        self._lines = logging.Formatter("%(message)s")

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the record, if a lease is behind it."""
        tell_line = logs.line_teller()
        if tell_line is None or record.name.partition(".")[0] == "hwqueue":
            return
        extra = {
            name: value
            for name, value in vars(record).items()
            if name not in logs.OF_EVERY_RECORD and name not in logs.LEASE_FIELDS
        }
        try:
            message = self._lines.format(record)
        except Exception:  # arguments that do not fit the message
            self.handleError(record)
        else:
            tell_line(log_line(message, _level_of(record), {"logger": record.name, **extra}))


def _level_of(record: logging.LogRecord) -> LogLevel:
    """The level of a line: its own or the next one below it; critical is an error."""
    for level in _LEVELS:
        if record.levelno >= logging.getLevelNamesMapping()[level.upper()]:
            return level
    return "debug"


@contextmanager
def keeping_records(level: LogLevel | None) -> Iterator[None]:
    """Keep what handlers log with Python's logging from this level on; None: nothing of it."""
    if level is None:
        yield
        return
    handler = KeepingHandler(level)
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
