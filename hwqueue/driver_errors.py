"""What a database driver reports, as this package's own errors."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict

from hwqueue.errors import BY_SQLSTATE, BadArgument, HwqueueError, SchemaTooOld
from hwqueue.hints import in_python

# What text and JSON give that Postgres cannot read. Other data errors come from within a function,
# and so are not the caller's.
_UNREADABLE = ("22021", "22P02", "22P05")

# What passes by itself, by SQLSTATE or its class. 25006 is a server that lost its rights in a failover
# while its sockets lived on: the client closes such a connection, and the next one may reach the new
# primary.
PASSING = (
    "08",  # connection
    "25006",  # read only
    "40",  # serialization failure, deadlock
    "53",  # out of connections, memory or disk
    "55P03",  # lock not available
    "57",  # cancelled, shutting down, starting up
    "58",  # input or output, outside of Postgres
)

# Who may call what is granted to roles (sql/grants.sql); the server does not say to which.
_ROLE_NEEDED = (
    "log in as one who has the role for it: hwqueue_producer spawns and cancels, hwqueue_worker "
    "runs workers, hwqueue_planner sets prices, hwqueue_operator looks at everything and acts on "
    "it, hwqueue_admin may do all, hwqueue_tenants does what its tenants may; see docs/run/security.md"
)

_OWNER_NEEDED = (
    "who installs the schema makes it in the database: log in as the database's owner, "
    "or let the owner: grant create on database NAME to LOGIN"
)

CONNECTION_ADVICE = "check host, port, database, user, password and pg_hba.conf; psql with the same DSN"
_NAME_ONE = (
    "no database is named: pass a DSN or set HWQUEUE_DSN; "
    "`hwqueue db url` prints that of the embedded Postgres"
)

# The schema or one of its functions is missing: what a call on a database without hwqueue raises.
_MISSING_IN_DATABASE = ("3F000", "42883")


@dataclass(frozen=True, slots=True)
class _Reported:
    """What psycopg, asyncpg or psycopg2 says of an error.

    Attributes:
        sqlstate: None: the driver itself refused.
    """

    sqlstate: str | None
    message: str
    detail: str | None
    hint: str | None

    @classmethod
    def by(cls, error: object) -> _Reported | None:
        """Of an error of one of the drivers; None: it is none."""
        psycopg2, asyncpg = sys.modules.get("psycopg2"), sys.modules.get("asyncpg")
        if isinstance(error, psycopg.Error):
            sqlstate, diag = error.sqlstate, error.diag
        elif psycopg2 is not None and isinstance(error, psycopg2.Error):
            sqlstate, diag = error.pgcode, error.diag
        elif asyncpg is not None and isinstance(error, asyncpg.PostgresError):
            return cls(error.sqlstate, error.message or str(error), error.detail, error.hint)
        else:
            return None
        message = diag.message_primary or str(error)
        return cls(sqlstate, message, diag.message_detail, diag.message_hint)


@contextmanager
def translate() -> Iterator[None]:
    """Turn driver errors about the queue into this package's own; leave all others alone.

    Works on errors of psycopg, asyncpg and psycopg2, and on SQLAlchemy's wrapping of them. The
    driver's error becomes the `__cause__`. An error about a permission is left alone but for a note
    on what to do.
    """
    try:
        yield
    except UnicodeEncodeError as error:  # psycopg writes in the encoding of the connection
        raise BadArgument(
            f"the connection's client_encoding, {error.encoding}, has no "
            f"{error.object[error.start : error.end]!r:.40}",
            detail={"client_encoding": error.encoding},
            hint="set client_encoding = 'UTF8' on it",
        ) from error
    except Exception as error:
        cause = _drivers_error(error)
        reported = _Reported.by(cause)
        if reported is None:
            raise
        ours = _own_error(reported, refused=isinstance(cause, psycopg.DataError))
        if ours is None:
            _note_denied(error, reported)
            raise
        raise ours from cause


def _drivers_error(error: BaseException) -> BaseException:
    """The driver's error in SQLAlchemy's, which has it in `orig`; asyncpg's in the one below."""
    orig = getattr(error, "orig", None)
    if not isinstance(orig, BaseException):
        return error
    return orig if orig.__cause__ is None or _Reported.by(orig) else orig.__cause__


def hint_of(error: psycopg.Error) -> str | None:
    """What to do where there is no connection, or no permission; None: the error is another one."""
    reported = _Reported.by(error)
    if isinstance(error, psycopg.OperationalError) and error.sqlstate is None:
        return CONNECTION_ADVICE
    return _hint_of_denied(reported) if reported else None


@contextmanager
def connecting(conninfo: str) -> Iterator[None]:
    """Add what to do to an error of connecting, which stays psycopg's."""
    try:
        yield
    except psycopg.OperationalError as error:
        named = conninfo_to_dict(conninfo).keys() - {"client_encoding"}
        is_named = named or any(name.startswith("PG") for name in os.environ)
        error.add_note(f"hint: {CONNECTION_ADVICE if is_named else _NAME_ONE}")
        raise


def _hint_of_denied(reported: _Reported) -> str | None:
    if reported.sqlstate != "42501" or reported.hint:
        return None
    return _OWNER_NEEDED if "for database" in reported.message else _ROLE_NEEDED


def _note_denied(error: Exception, reported: _Reported) -> None:
    """Add what to do about a missing permission to the error, once."""
    hint = _hint_of_denied(reported)
    note = f"hint: {hint}"
    if hint and note not in getattr(error, "__notes__", ()):
        error.add_note(note)


def _own_error(reported: _Reported, *, refused: bool) -> HwqueueError | None:
    """The error to raise instead of the driver's, or None if it is not about the queue.

    Args:
        refused: Whether the driver may have refused data itself.
    """
    sqlstate, message = reported.sqlstate, reported.message
    if sqlstate is not None and sqlstate.startswith("QH"):
        # a code that a newer schema has added still is one of ours
        kind = BY_SQLSTATE.get(sqlstate, HwqueueError)
        facts = _facts(reported.detail)
        hint = in_python(sqlstate, reported.hint, facts)
        return kind(message, sqlstate=sqlstate, detail=facts, hint=hint)
    if sqlstate in _UNREADABLE or (sqlstate is None and refused):
        return BadArgument(
            message,
            sqlstate=sqlstate,
            hint=reported.hint or reported.detail or "see the cause for the driver's words",
        )
    if sqlstate in _MISSING_IN_DATABASE and "hwqueue" in message:
        return SchemaTooOld(
            f"the database lacks what this package calls: {message}",
            sqlstate=sqlstate,
            hint="install or upgrade the schema: hwqueue db upgrade",
        )
    return None


def _facts(detail: str | None) -> dict[str, Any]:
    """The DETAIL of one of our errors: always a JSON object, unless something rewrote it."""
    try:
        facts = json.loads(detail or "{}")
    except ValueError:
        facts = None
    return facts if isinstance(facts, dict) else {"text": detail}
