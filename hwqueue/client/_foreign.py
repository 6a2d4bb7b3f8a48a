"""Recognise connections of SQLAlchemy, Django and other drivers, without importing any of them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from enum import Enum
from typing import Any

import psycopg

from hwqueue.calls import Call
from hwqueue.client._drivers import is_asyncpg, is_psycopg2, positional, texts
from hwqueue.errors import BadArgument
from hwqueue.statements import statement_of_texts

_BY_SQL = (
    "through another driver spawn by SQL, in your transaction: "
    "select hwqueue.spawn_lease('queue', 'task', '{\"frame\": 7}')"
)


def async_sqlalchemy() -> tuple[tuple[type, ...], tuple[type, ...]]:
    """SQLAlchemy's asyncio connection and session types; empty while nobody has imported them."""
    module = sys.modules.get("sqlalchemy.ext.asyncio")
    return ((module.AsyncConnection,), (module.AsyncSession,)) if module else ((), ())


def sync_sqlalchemy() -> tuple[tuple[type, ...], tuple[type, ...]]:
    """SQLAlchemy's connection and session types; empty while nobody has imported them."""
    engine, orm = sys.modules.get("sqlalchemy.engine"), sys.modules.get("sqlalchemy.orm")
    connections = (engine.Connection,) if engine else ()
    return connections, (orm.Session,) if orm else ()


def async_unwrapped(connection: Any) -> Any:
    """The session of SQLAlchemy's `async_scoped_session` at this moment; else what was given."""
    is_scoped = _is(connection, "sqlalchemy.ext.asyncio", "async_scoped_session")
    return connection() if is_scoped else connection


def sync_unwrapped(connection: Any) -> Any:
    """The session of a `scoped_session`, the driver's connection of Django's; else what was given.

    Raises: BadArgument, if Django's database is not Postgres.
    """
    if _is(connection, "sqlalchemy.orm", "scoped_session"):
        return connection()
    if _is(connection, "django.utils.connection", "ConnectionProxy") or _is(
        connection, "django.db.backends.base.base", "BaseDatabaseWrapper"
    ):
        connection.ensure_connection()
        driver = connection.connection
        if not (isinstance(driver, psycopg.Connection) or is_psycopg2(driver)):
            raise _wrong_driver(
                f"Django's {connection.vendor} with {_name(driver)}",
                'use the engine "django.db.backends.postgresql"',
            )
        return driver
    return connection


def refusal(client: str, connection: Any) -> BadArgument:
    """Why a client cannot work on what it was given, a `Client` or an `AsyncClient`."""
    blocking = (psycopg.Connection, *(each for pair in sync_sqlalchemy() for each in pair))
    waiting = (psycopg.AsyncConnection, *(each for pair in async_sqlalchemy() for each in pair))
    hint = (
        "give a connection of psycopg, asyncpg or psycopg2, or a connection or session of "
        f"SQLAlchemy on one of them; {_BY_SQL}"
    )
    why = ""
    unwrapped = sync_unwrapped(connection)
    if isinstance(unwrapped, blocking) or is_psycopg2(unwrapped):
        why = ", which is not one for asyncio"
        hint = "Client.on(...) works on it; AsyncClient.on takes the asyncio kinds"
    elif isinstance(connection, waiting) or is_asyncpg(connection):
        why = ", which is one for asyncio"
        hint = "AsyncClient.on(...) works on it; Client.on takes the others"
    return BadArgument(
        f"{client} cannot work on a {_name(connection)}{why}", detail={"field": "connection"}, hint=hint
    )


def _is(thing: Any, module: str, name: str) -> bool:
    """Whether it is of this class, of a module that somebody has imported."""
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(thing, kind)


def _name(thing: Any) -> str:
    return f"{type(thing).__module__}.{type(thing).__qualname__}"


def _wrong_driver(found: str, hint: str) -> BadArgument:
    return BadArgument(
        f"the connection uses {found}, hwqueue needs psycopg, asyncpg or psycopg2",
        detail={"field": "connection", "driver": found},
        hint=f"{hint}; or {_BY_SQL}",
    )


class SqlAlchemyForm(Enum):
    """How a driver of SQLAlchemy takes statements and arguments."""

    PSYCOPG = "psycopg"
    ASYNCPG = "asyncpg"
    PSYCOPG2 = "psycopg2"

    @classmethod
    def of(cls, dialect: Any) -> SqlAlchemyForm:
        """The form for the driver of an engine. Raises: BadArgument: it is none of these."""
        drivers = {"psycopg_async": "psycopg"}
        try:
            if dialect.name == "postgresql":
                return cls(drivers.get(dialect.driver, dialect.driver))
        except ValueError:
            pass
        raise _wrong_driver(
            f"{dialect.name}+{dialect.driver}",
            "make the engine with a URL that starts with postgresql+psycopg://",
        )

    def of_statement(self, sql: str, arguments: Mapping[str, Any]) -> tuple[str, Any]:
        """A statement and its arguments as `exec_driver_sql` takes them."""
        if self is SqlAlchemyForm.ASYNCPG:
            sql, *values = positional(sql, arguments)
            return sql, tuple(values)
        return sql, dict(arguments)

    def of_call(self, call: Call, arguments: Mapping[str, Any]) -> tuple[str, Any]:
        """The statement of a call and its arguments, as `exec_driver_sql` takes them."""
        return self.of_statement(statement_of_texts(call, tuple(arguments)), texts(arguments))
