"""The queue's clock in a test database, which tests can stop and move."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, cast

import psycopg

from hwqueue.schema.files import SQL_DIR

# These two write a table that exists only where `install_clock` was called; no function does.
_ADVANCE = "update hwqueue.test_clock set offset_by = offset_by operator(pg_catalog.+) %s"
_FREEZE = (
    "update hwqueue.test_clock set frozen_at = coalesce(%s::timestamptz, hwqueue.clock()), offset_by = '0'"
)


class Clock:
    """The queue's clock in a test database, for all sessions at once. Made by `install_clock`."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def now(self) -> datetime:
        """What the queue takes for the time. SQL: clock."""
        row = self._connection.execute("select hwqueue.clock()").fetchone()
        return cast(tuple[datetime], row)[0]

    def advance(self, by: timedelta) -> None:
        """Move the time forward; negative spans move it back."""
        self._connection.execute(_ADVANCE, [by])

    def freeze(self, at: datetime | None = None) -> None:
        """Stop the time at `at` (None: at this moment); `advance` still moves it."""
        self._connection.execute(_FREEZE, [at])


def install_clock(connection: psycopg.Connection[Any]) -> Clock:
    """Put a clock that tests can move in the place of the queue's own.

    Never do this to a database that is used: `hwqueue db check` reports it, and the next
    `hwqueue db upgrade` of another version brings the real clock back.

    Args:
        connection: In autocommit, of the user who installed the schema.
    """
    connection.execute((SQL_DIR / "testing" / "clock.sql").read_bytes())
    return Clock(connection)
