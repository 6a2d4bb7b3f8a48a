"""What runs a statement: a pool of one's own, or a connection that the caller brings."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Protocol, runtime_checkable

import psycopg
from psycopg.rows import tuple_row
from psycopg.types.datetime import TimestamptzLoader
from psycopg.types.json import set_json_loads
from psycopg_pool import AsyncConnectionPool

from hwqueue.calls import BACKEND_PID, SET_ACTOR, Call, statement
from hwqueue.client._arguments import check_span
from hwqueue.client._drivers import Rows
from hwqueue.client._foreign import (
    SqlAlchemyForm,
    async_driver_runner,
    async_sqlalchemy,
    async_unwrapped,
    refusal,
)
from hwqueue.client._json import read_json
from hwqueue.connections import named_conninfo
from hwqueue.errors import ConfigError

# The pool doubles its wait between two attempts to connect, up to minutes after the server is back;
# so it is made to give up early, and to start again while a caller waits.
_RECONNECT_SECONDS = 2.0


@runtime_checkable
class AsyncRunner(Protocol):
    """Makes a call and returns all its rows."""

    async def run(self, call: Call, arguments: Mapping[str, Any], actor: str | None = None) -> Rows:
        """Call with these arguments, checked and by name; `actor` does it, None: the login."""
        ...


class AsyncPoolRunner:
    """A pool of autocommit connections: every call is a transaction.

    Fit for PgBouncer in transaction mode: no session settings, no startup options, and no prepared
    statements unless asked for.
    """

    def __init__(
        self, conninfo: str | None, *, size: int, prepare: bool, timeout: timedelta
    ) -> None:
        if size < 1:
            raise ConfigError(f"pool_size must be at least 1, got {size}")
        self._conninfo = named_conninfo(conninfo, "conninfo")
        self._size = size
        self._prepare = prepare
        check_span(timeout, "pool_timeout")
        self._timeout = timeout.total_seconds()
        self._pool: AsyncConnectionPool[Any] | None = None

    async def open(self) -> None:
        """Connect, unless open. Raises: psycopg.OperationalError, at once if the server refuses."""
        if self._pool is not None:
            return
        # The pool would retry a wrong password in silence until its timeout; one plain attempt
        # says what is wrong.
        probe = await psycopg.AsyncConnection.connect(self._conninfo)
        await probe.close()
        options: dict[str, Any] = {"autocommit": True}
        if not self._prepare:
            options["prepare_threshold"] = None
        self._pool = AsyncConnectionPool(
            self._conninfo,
            min_size=1,
            max_size=self._size,
            timeout=self._timeout,
            reconnect_timeout=_RECONNECT_SECONDS,
            reconnect_failed=_try_again,
            configure=_configure,
            kwargs=options,
            open=False,
        )
        await self._pool.open()

    async def close(self) -> None:
        """Close all connections; calls that wait for one fail."""
        if self._pool is not None:
            await self._pool.close()
            self._pool = None

    async def run(self, call: Call, arguments: Mapping[str, Any], actor: str | None = None) -> Rows:
        """Make the call on a connection of the pool, in a transaction of its own."""
        sql = statement(call, tuple(arguments))
        if self._pool is None:
            raise ConfigError(
                "the client is not open", hint="use it in a with statement, or call open() first"
            )
        async with self._pool.connection() as connection:
            try:
                if actor is None:
                    return await _fetch(connection, sql, arguments)
                # the setting ends with the transaction, so no pooler hands it on
                async with connection.transaction():
                    await connection.execute(SET_ACTOR, {"actor": actor})
                    return await _fetch(connection, sql, arguments)
            except psycopg.errors.ReadOnlySqlTransaction:
                # The server has become a standby; a new connection may reach the new primary.
                await connection.close()
                raise

    async def listen(self, statement: str) -> psycopg.AsyncConnection[Any] | None:
        """A connection beside the pool that has run this LISTEN; None where it would hear nothing.

        That is behind a pooler, whose clients are told another process id than the server's, and
        while the server refuses connections.
        """
        try:
            connection = await psycopg.AsyncConnection.connect(
                self._conninfo, autocommit=True, prepare_threshold=None
            )
        except psycopg.OperationalError:
            return None
        try:
            [[pid]] = await _fetch(connection, BACKEND_PID, {})
            if pid == connection.info.backend_pid:
                await connection.execute(statement)
                return connection
        except psycopg.OperationalError:
            pass
        except BaseException:
            await connection.close()
            raise
        await connection.close()
        return None


async def _configure(connection: psycopg.AsyncConnection[Any]) -> None:
    set_json_loads(read_json, connection)


async def _fetch(
    connection: psycopg.AsyncConnection[Any], sql: str, arguments: Mapping[str, Any]
) -> Rows:
    cursor = await connection.execute(sql, arguments)
    rows: Rows = await cursor.fetchall()
    return rows


async def _try_again(pool: AsyncConnectionPool[Any]) -> None:
    """Start to connect again, if a caller waits for it; else the next caller does."""
    if pool.get_stats().get("requests_waiting"):
        await pool.check()


class AsyncConnectionRunner:
    """The caller's psycopg connection, in whatever transaction it is."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection = connection

    async def run(self, call: Call, arguments: Mapping[str, Any], actor: str | None = None) -> Rows:
        """Make the call in the caller's transaction, which is never committed."""
        sql = statement(call, tuple(arguments))
        if actor is not None and _is_outside(self._connection):
            # in autocommit the setting would end before the call
            async with self._connection.transaction():
                return await self._run(sql, arguments, actor)
        return await self._run(sql, arguments, actor)

    async def _run(self, sql: str, arguments: Mapping[str, Any], actor: str | None) -> Rows:
        async with self._connection.cursor(row_factory=tuple_row) as cursor:
            # of this cursor alone: how the caller reads JSON and times is theirs to say
            set_json_loads(read_json, cursor)
            cursor.adapters.register_loader("timestamptz", TimestamptzLoader)
            if actor is not None:
                await cursor.execute(SET_ACTOR, {"actor": actor})
            await cursor.execute(sql, arguments)
            return await cursor.fetchall()


def _is_outside(connection: psycopg.AsyncConnection[Any]) -> bool:
    """Whether each statement on it is a transaction of its own at this moment."""
    idle = psycopg.pq.TransactionStatus.IDLE
    return connection.autocommit and connection.info.transaction_status == idle


class AsyncSqlAlchemyRunner:
    """The caller's SQLAlchemy connection or session, in whatever transaction it is."""

    def __init__(self, connection: Any, *, is_session: bool) -> None:
        self._connection = connection
        self._is_session = is_session

    async def run(self, call: Call, arguments: Mapping[str, Any], actor: str | None = None) -> Rows:
        """Make the call in the caller's transaction; never commits, nor flushes a session."""
        connection = await self._connection.connection() if self._is_session else self._connection
        form = SqlAlchemyForm.of(connection.dialect)
        if actor is not None:
            await connection.exec_driver_sql(*form.of_statement(SET_ACTOR, {"actor": actor}))
        result = await connection.exec_driver_sql(*form.of_call(call, arguments))
        return form.rows(call, result.all())


def runner_on(connection: Any) -> AsyncRunner:
    """The runner for a connection that the caller brings. Raises: BadArgument."""
    connection = async_unwrapped(connection)
    if isinstance(connection, psycopg.AsyncConnection):
        return AsyncConnectionRunner(connection)
    if (runner := async_driver_runner(connection)) is not None:
        return runner
    connections, sessions = async_sqlalchemy()
    if isinstance(connection, connections):
        return AsyncSqlAlchemyRunner(connection, is_session=False)
    if isinstance(connection, sessions):
        return AsyncSqlAlchemyRunner(connection, is_session=True)
    if isinstance(connection, AsyncRunner):  # of another part of this package
        return connection
    raise refusal("AsyncClient", connection)
