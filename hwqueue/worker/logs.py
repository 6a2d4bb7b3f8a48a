"""What running handlers log, until it is sent; and records of Python's logging that are kept."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from uuid import UUID

from hwqueue import logs
from hwqueue.lines import MOST_LINES, Line, log_line
from hwqueue.logs import LogLevel
from hwqueue.types import Claim
from hwqueue.worker.outbox import Item, Outbox, Send

_LEVELS: tuple[LogLevel, ...] = ("error", "warning", "info")
_MOST_CLAIMS = 1000  # of one call
_LINES_AT_ONCE = 2000  # a call of very many would be a long one; all of a claim go together


class LogBook(Outbox):
    """The last lines of each claim: as many as the database keeps, those before are dropped.

    Args:
        send: Writes lines to the database.
    """

    def __init__(self, send: Send) -> None:
        super().__init__("log lines were", send)
        self._unsent: dict[tuple[UUID, int], deque[Line]] = {}

    def tell(self, claim: Claim, line: Line) -> None:
        """Keep a numbered line of this claim's handler; from any thread."""
        with self._lock:
            is_first = not self._unsent
            key = claim.lease_id, claim.claim_token
            self._unsent.setdefault(key, deque(maxlen=MOST_LINES)).append(line)
        if is_first:
            self._wake()

    @property
    def _is_empty(self) -> bool:
        return not self._unsent

    def _take(self) -> Iterable[Sequence[Item]]:
        unsent, self._unsent = self._unsent, {}
        batch: list[Item] = []
        count = 0
        for (lease_id, token), lines in unsent.items():
            if batch and (count + len(lines) > _LINES_AT_ONCE or len(batch) == _MOST_CLAIMS):
                yield batch
                batch, count = [], 0
            item = {"lease_id": str(lease_id), "claim_token": token, "lines": list(lines)}
            batch.append(item)
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
