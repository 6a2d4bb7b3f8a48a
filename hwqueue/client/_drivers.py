"""Calls on connections of asyncpg and psycopg2, which nobody here imports.

Arguments go as text that the statement casts; psycopg writes it. JSON comes back as text. So what
the caller's connection makes of values of its own (codecs, adapters, casts) does not matter.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from psycopg.adapt import PyFormat, Transformer

from hwqueue.calls import SET_ACTOR, Call, column_types, numbered, statement_of_texts
from hwqueue.client._json import read_json

Rows = Sequence[Sequence[Any]]


def is_asyncpg(connection: Any) -> bool:
    """Whether it is a connection of asyncpg, or one that its pool lends."""
    module = sys.modules.get("asyncpg")
    return module is not None and isinstance(
        connection, module.Connection | module.pool.PoolConnectionProxy
    )


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
        extensions = sys.modules["psycopg2.extensions"]
        idle = self._connection.get_transaction_status() == extensions.TRANSACTION_STATUS_IDLE
        if actor is not None and self._connection.autocommit and idle:
            # in autocommit the setting would end before the call
            with self._connection:
                return self._run(call, arguments, actor, extensions.cursor)
        return self._run(call, arguments, actor, extensions.cursor)

    def _run(
        self, call: Call, arguments: Mapping[str, Any], actor: str | None, plain_cursor: Any
    ) -> Rows:
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


def _uuid(value: Any) -> UUID:
    return UUID(str(value))  # asyncpg has a class of its own, psycopg2 text


def _uuids(value: Any) -> list[UUID]:
    return [_uuid(each) for each in value]


def _as_it_is(value: Any) -> Any:
    return value


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "jsonb": read_json,
    "uuid": _uuid,
    "uuid[]": _uuids,
    "bytea": bytes,
}
