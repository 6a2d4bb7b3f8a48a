"""Calls on connections that a caller brings: of psycopg, asyncpg and psycopg2.

Arguments go as text that the statement casts; psycopg writes it. All that is not a number or a
boolean comes back as text: times, spans and floats as the hex of their binary form. So what the
caller's connection makes of values of its own (codecs, adapters, casts) does not matter, nor what
its session is set to. Nobody here imports asyncpg or psycopg2.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from psycopg.adapt import Loader, PyFormat, Transformer
from psycopg.types.datetime import IntervalBinaryLoader, TimestamptzBinaryLoader
from psycopg.types.numeric import Float8BinaryLoader

from hwqueue.calls import SET_ACTOR, Call
from hwqueue.client._json import read_json
from hwqueue.errors import BadArgument
from hwqueue.statements import column_types, numbered, statement_of_texts

Rows = Sequence[Sequence[Any]]


def is_asyncpg(connection: Any) -> bool:
    """Whether it is a connection of asyncpg, or one that its pool lends."""
    module = sys.modules.get("asyncpg")
    return module is not None and isinstance(connection, module.Connection | module.pool.PoolConnectionProxy)


def is_psycopg2(connection: Any) -> bool:
    """Whether it is a connection of psycopg2."""
    module = sys.modules.get("psycopg2.extensions")
    return module is not None and isinstance(connection, module.connection)


class AsyncpgRunner:
    """The caller's asyncpg connection, in whatever transaction it is."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def run(self, call: Call, arguments: Mapping[str, Any], actor: str | None = None) -> Rows:
        """Make the call in the caller's transaction, which is never committed."""
        if actor is not None and not self._connection.is_in_transaction():
            # the setting would end before the call
            async with self._connection.transaction():
                return await self._run(call, arguments, actor)
        return await self._run(call, arguments, actor)

    async def _run(self, call: Call, arguments: Mapping[str, Any], actor: str | None) -> Rows:
        if actor is not None:
            await self._connection.fetch(*positional(SET_ACTOR, {"actor": actor}))
        sql = statement_of_texts(call, tuple(arguments))
        rows = await self._connection.fetch(*positional(sql, texts(arguments)))
        return read_rows(call, [tuple(row.values()) for row in rows])


class Psycopg2Runner:
    """The caller's psycopg2 connection, in whatever transaction it is."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def run(self, call: Call, arguments: Mapping[str, Any], actor: str | None = None) -> Rows:
        """Make the call in the caller's transaction, which is never committed."""
        check_encoding(self._connection.encoding)
        extensions = sys.modules["psycopg2.extensions"]
        idle = self._connection.get_transaction_status() == extensions.TRANSACTION_STATUS_IDLE
        if actor is not None and self._connection.autocommit and idle:
            # in autocommit the setting would end before the call
            with self._connection:
                return self._run(call, arguments, actor, extensions.cursor)
        return self._run(call, arguments, actor, extensions.cursor)

    def _run(self, call: Call, arguments: Mapping[str, Any], actor: str | None, plain_cursor: Any) -> Rows:
        with self._connection.cursor(cursor_factory=plain_cursor) as cursor:
            if actor is not None:
                cursor.execute(SET_ACTOR, {"actor": actor})
            cursor.execute(statement_of_texts(call, tuple(arguments)), texts(arguments))
            return read_rows(call, cursor.fetchall())


def positional(sql: str, arguments: Mapping[str, Any]) -> tuple[Any, ...]:
    """A statement and its arguments as asyncpg takes them, in one tuple."""
    return numbered(sql, tuple(arguments)), *arguments.values()


def texts(arguments: Mapping[str, Any]) -> dict[str, str]:
    """Checked arguments as the text that Postgres reads."""
    return {name: _text(value) for name, value in arguments.items()}


def _text(value: Any) -> str:
    if isinstance(value, timedelta):
        # each part with its sign: some settings of IntervalStyle extend the first one to all
        return f"{value.days:+d} days {value.seconds:+d} s {value.microseconds:+d} us"
    if isinstance(value, bytes):
        return rf"\x{value.hex()}"  # psycopg's own escapes depend on a connection
    [dumped] = Transformer().dump_sequence([value], [PyFormat.TEXT])
    return bytes(dumped or b"").decode()


def read_rows(call: Call, rows: Sequence[Sequence[Any]]) -> Rows:
    """The rows of a call with the values that psycopg makes."""
    if not call.columns:
        read = _READERS.get(call.returns, _as_it_is)
        return [[None if value is None else read(value)] for [value] in rows]
    readers = [_READERS.get(sql_type, _as_it_is) for sql_type in column_types(call).values()]
    return [
        [None if value is None else read(value) for read, value in zip(readers, row, strict=True)]
        for row in rows
    ]


def check_encoding(name: str) -> None:
    """Refuse a connection whose text is of no known encoding. Raises: BadArgument."""
    if name.upper().replace("_", "") in ("ASCII", "SQLASCII"):
        raise BadArgument(
            "the connection's client_encoding is SQL_ASCII, so its text has no known encoding",
            detail={"field": "connection", "client_encoding": "SQL_ASCII"},
            hint="set client_encoding = 'UTF8' on it; or for all of them: "
            "alter role ... set client_encoding = 'UTF8'",
        )


def _sent(loader: type[Loader]) -> Callable[[Any], Any]:
    """Reads the hex of what the server's own send function makes, as psycopg does."""
    load = loader(0).load
    return lambda value: load(bytes.fromhex(value))


def _as_it_is(value: Any) -> Any:
    return value


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "jsonb": read_json,
    "uuid": UUID,
    "uuid[]": lambda value: [UUID(each) for each in value],
    "bytea": bytes.fromhex,
    "timestamp with time zone": _sent(TimestamptzBinaryLoader),
    "interval": _sent(IntervalBinaryLoader),
    "double precision": _sent(Float8BinaryLoader),
}
