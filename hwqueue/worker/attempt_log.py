"""The log of an attempt in the worker: lines until they are sent, and records of `logging`."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from hwqueue import logs
from hwqueue.handler.attempt_log import MOST_LINES, Line, log_line
from hwqueue.logs import LogLevel
from hwqueue.worker.outbox import Item, Key, Outbox, Send, item_of

_LEVELS: tuple[LogLevel, ...] = ("error", "warning", "info")
_MOST_CLAIMS = 1000  # of one call
_LINES_AT_ONCE = 2000  # a call of very many would be a long one; all of a claim go together


class LogOutbox(Outbox[deque[Line]]):
    """The last lines of each claim: as many as the database keeps, those before are dropped.

    Args:
        send: Writes lines to the database.
    """

    def __init__(self, send: Send) -> None:
        super().__init__("log lines were", send)

    def _add(self, key: Key, said: Item) -> None:
        self._unsent.setdefault(key, deque(maxlen=MOST_LINES)).append(said)

    def _batches(self, unsent: Mapping[Key, deque[Line]]) -> Iterable[Sequence[Item]]:
        batch: list[Item] = []
        count = 0
        for key, lines in unsent.items():
            if batch and (count + len(lines) > _LINES_AT_ONCE or len(batch) == _MOST_CLAIMS):
                yield batch
                batch, count = [], 0
            batch.append(item_of(key, {"lines": list(lines)}))
            count += len(lines)
        if batch:
            yield batch


class KeepingHandler(logging.Handler):
    """Keeps what handlers log with the attempt, as `context.log` does.

    The field `logger` names the logger, the other fields are those of `extra`; a traceback stands
    below the message. What hwqueue itself logs is not the handler's, and not kept.

    Args:
        level: The lowest that is kept.
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
