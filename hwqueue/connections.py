"""psycopg connections with deadlines: for connecting, for a vanished peer, for an answer.

A hung server and a black-holed network never close the socket. Without a deadline of the client's
own, a caller waits for their answer for ever.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from contextlib import suppress
from typing import Any

from psycopg import AsyncConnection, Connection, OperationalError, ProgrammingError
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from hwqueue.errors import ConfigError


def check_conninfo(conninfo: str, origin: str) -> None:
    """Refuse what is no connection string, in words that hold nothing of it.

    What libpq says repeats the string, or the part that it does not understand: with the password,
    in logs and on screens.

    Args:
        origin: Where the string comes from, such as `--dsn`.

    Raises: ConfigError.
    """
    try:
        conninfo_to_dict(conninfo)
    except ProgrammingError:
        hint = "write postgresql://user:password@host:port/database"
        scheme = conninfo.partition("://")[0]
        if scheme.startswith(("postgresql+", "postgres+")):
            hint = f"{hint}: what is after the + is SQLAlchemy's"
        elif "%" in conninfo:
            hint = f"{hint}, with %25 for a % in a password"
        raise ConfigError(f"{origin} is not a connection string", hint=hint) from None


def named_conninfo(conninfo: str | None, origin: str) -> str:
    """The connection string that was given; None: that of `HWQUEUE_DSN`, else the `PG*` variables.

    Empty is most often a variable of a script that was never set: libpq would take it for the
    `PG*` variables, and put the work where nobody looks for it.

    Args:
        origin: Where the string comes from, such as `conninfo`.

    Raises: ConfigError, also if `HWQUEUE_DSN` is set and empty, as on the command line.
    """
    if conninfo is None:
        if (conninfo := os.environ.get("HWQUEUE_DSN")) is None:
            return ""  # libpq reads the variables itself
        origin = "HWQUEUE_DSN"
    if not conninfo.strip():
        raise ConfigError(f"{origin} is empty", hint=f"name a database, or leave {origin} out")
    check_conninfo(conninfo, origin)
    return conninfo


def in_utf8(conninfo: str) -> str:
    """The connection string of a session whose text is UTF-8, whatever else it has by default.

    psycopg writes JSON in UTF-8 on every connection. libpq says the encoding as it connects, where
    poolers expect it.
    """
    return make_conninfo(conninfo, client_encoding="UTF8")


def with_timeouts(conninfo: str, *, seconds: int, **defaults: str) -> str:
    """The connection string with timeouts for what libpq waits for, and other `defaults`.

    What the string says itself stays. All of it concerns the client's socket alone, so PgBouncer
    may be in between.

    Args:
        seconds: For connecting, and until a peer that has vanished is noticed; at least 2.
    """
    seconds = max(seconds, 2)
    wanted: dict[str, str | int] = {
        "connect_timeout": seconds,
        "keepalives_idle": seconds,
        "keepalives_interval": 1,
        "keepalives_count": 3,
        "tcp_user_timeout": seconds * 1000,
        **defaults,
    }
    check_conninfo(conninfo, "the DSN")
    given = conninfo_to_dict(conninfo)
    return in_utf8(
        make_conninfo(conninfo, **{name: value for name, value in wanted.items() if name not in given})
    )


class WatchedAsyncConnection(AsyncConnection[Any]):
    """A connection that ends as if the server had ended it, if an answer takes too long.

    Attributes:
        answer_within: Seconds for a statement and its rows; None: no limit. More than the
            statement may take in the server, which then says so itself.
    """

    answer_within: float | None = None

    async def wait(self, *args: Any, **options: Any) -> Any:
        """Whatever the connection waits for passes here."""
        if self.answer_within is None:
            return await super().wait(*args, **options)
        loop = asyncio.get_running_loop()
        watch = loop.call_later(self.answer_within, _hang_up, self)
        try:
            return await super().wait(*args, **options)
        finally:
            watch.cancel()


class WatchedConnection(Connection[Any]):
    """The same for threads."""

    answer_within: float | None = None

    def wait(self, *args: Any, **options: Any) -> Any:
        """Whatever the connection waits for passes here."""
        if self.answer_within is None:
            return super().wait(*args, **options)
        watch = threading.Timer(self.answer_within, _hang_up, (self,))
        watch.daemon = True
        watch.start()
        try:
            return super().wait(*args, **options)
        finally:
            watch.cancel()
            watch.join()  # else it could end what gets the same descriptor after this


def _hang_up(connection: AsyncConnection[Any] | Connection[Any]) -> None:
    """End a connection while somebody waits for it; they get an OperationalError."""
    with (
        suppress(OperationalError, OSError),  # it may end by itself at this moment
        # a copy: the descriptor itself is libpq's, which notices that nothing more comes; it is
        # ended alike whatever family it is of
        socket.fromfd(connection.fileno(), socket.AF_INET, socket.SOCK_STREAM) as ours,
    ):
        ours.shutdown(socket.SHUT_RDWR)
