"""Recognise the objects of SQLAlchemy and Django without importing either of them."""

from __future__ import annotations

import sys
from typing import Any

import psycopg

from hwqueue.errors import BadArgument

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
    return (
        connection()
        if _is(connection, "sqlalchemy.ext.asyncio", "async_scoped_session")
        else (connection)
    )


def sync_unwrapped(connection: Any) -> Any:
    """The session of a `scoped_session`, psycopg's connection of Django's; else what was given.

    Raises: BadArgument, if Django's driver is not psycopg 3.
    """
    if _is(connection, "sqlalchemy.orm", "scoped_session"):
        return connection()
    if _is(connection, "django.utils.connection", "ConnectionProxy") or _is(
        connection, "django.db.backends.base.base", "BaseDatabaseWrapper"
    ):
        connection.ensure_connection()
        if not isinstance(connection.connection, psycopg.Connection):
            raise _wrong_driver(
                f"Django's {connection.vendor} with {_name(connection.connection)}",
                'use the engine "django.db.backends.postgresql", and pip install psycopg',
            )
        return connection.connection
    return connection


def refusal(client: str, connection: Any) -> BadArgument:
    """Why a client cannot work on what it was given, a `Client` or an `AsyncClient`."""
    blocking = (psycopg.Connection, *(each for pair in sync_sqlalchemy() for each in pair))
    waiting = (psycopg.AsyncConnection, *(each for pair in async_sqlalchemy() for each in pair))
    hint = (
        "give a connection of psycopg, or a connection or session of SQLAlchemy with the psycopg "
        f"driver; {_BY_SQL}"
    )
    why = ""
    if isinstance(sync_unwrapped(connection), blocking):
        why = ", which is not one for asyncio"
        hint = "Client.on(...) works on it; AsyncClient.on takes the asyncio kinds"
    elif isinstance(connection, waiting):
        why = ", which is one for asyncio"
        hint = "AsyncClient.on(...) works on it; Client.on takes the others"
    return BadArgument(
        f"{client} cannot work on a {_name(connection)}{why}",
        detail={"field": "connection"},
        hint=hint,
    )


def _is(thing: Any, module: str, name: str) -> bool:
    """Whether it is of this class, of a module that somebody has imported."""
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(thing, kind)


def _name(thing: Any) -> str:
    return f"{type(thing).__module__}.{type(thing).__qualname__}"


def _wrong_driver(found: str, hint: str) -> BadArgument:
    return BadArgument(
        f"the connection uses {found}, hwqueue needs psycopg 3",
        detail={"field": "connection", "driver": found},
        hint=f"{hint}; or {_BY_SQL}",
    )


def check_dialect(dialect: Any) -> None:
    """Refuse engines whose driver is not psycopg 3: parameters and errors would be others."""
    if dialect.name != "postgresql" or not dialect.driver.startswith("psycopg"):
        found = f"{dialect.name}+{dialect.driver}"
    elif dialect.driver == "psycopg2":
        found = "postgresql+psycopg2"
    else:
        return
    raise _wrong_driver(found, "make the engine with a URL that starts with postgresql+psycopg://")
