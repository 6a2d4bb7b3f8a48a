"""What runs a statement: a pool of one's own, or a connection that the caller brings."""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any, Protocol, runtime_checkable

import psycopg
from psycopg.rows import tuple_row
from psycopg_pool import AsyncConnectionPool

from hwqueue.calls import BACKEND_PID, DEFAULT_ISOLATION, SET_ACTOR, Call
from hwqueue.client._arguments import check_span
from hwqueue.client._drivers import AsyncpgRunner, Rows, check_encoding, is_asyncpg, read_rows, texts
from hwqueue.client._foreign import SqlAlchemyForm, async_sqlalchemy, async_unwrapped, refusal
from hwqueue.client._pooled import READ_COMMITTED, read_as_usual, says_something
from hwqueue.connections import in_utf8, named_conninfo
from hwqueue.driver_errors import connecting
from hwqueue.errors import ConfigError
from hwqueue.statements import statement, statement_of_texts

# The pool doubles its wait between two attempts to connect, up to minutes after the server is back;
# so it is made to give up early, and to start again while a caller waits.
RECONNECT_SECONDS = 2.0

# A connection that has been idle for longer is asked whether it still works before it is used:
# what is in between may have dropped it without a word. One that the server has closed says so.
_IDLE_SECONDS = 30.0

Each = Iterable[Mapping[str, Any]] | None

# Pools of a process that this one is a fork of; to free one would close what is the parent's.
_inherited: list[object] = []


class AsyncPooled(psycopg.AsyncConnection[Any]):
    """A connection of the pool.

    Attributes:
        used_at: When it was last used, by the monotonic clock.
    """

    used_at: float = 0.0


@runtime_checkable
class AsyncCallRunner(Protocol):
    """Makes a call and returns all its rows."""

    async def run(self, call: Call, arguments: Mapping[str, Any], actor: str | None = None) -> Rows:
        """Call with these arguments, checked and by name; `actor` does it, None: the login."""
        ...


class AsyncPoolRunner:
    """A pool of autocommit connections: every call is a transaction.

    Fit for PgBouncer in transaction mode: no session settings, no startup options, and no prepared
    statements unless asked for.

    Attributes:
        hides_cuts: Whether a connection that has ended while it was idle is replaced without a
            word. Else the call that finds it fails. Read by `open`.
    """

    hides_cuts = True

    def __init__(self, conninfo: str | None, *, size: int, prepare: bool, timeout: timedelta) -> None:
        if size < 1:
            raise ConfigError(f"pool_size must be at least 1, got {size}")
        self._conninfo = in_utf8(named_conninfo(conninfo, "conninfo"))
        self._size = size
        self._prepare = prepare
        check_span(timeout, "pool_timeout")
        self._timeout = timeout.total_seconds()
        self._pool: AsyncConnectionPool[AsyncPooled] | None = None
        self._process = 0

    async def open(self) -> None:
        """Connect, unless open. Raises: psycopg.OperationalError, at once if the server refuses."""
        self._leave_inherited()
        if self._pool is not None:
            return
        # The pool would retry a wrong password in silence until its timeout; one plain attempt
        # says what is wrong.
        with connecting(self._conninfo):
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
            reconnect_timeout=RECONNECT_SECONDS,
            reconnect_failed=try_again,
            connection_class=AsyncPooled,
            configure=_configure,
            check=_check if self.hides_cuts else None,
            kwargs=options,
            open=False,
        )
        self._process = os.getpid()
        await self._pool.open()

    async def close(self) -> None:
        """Close all connections; calls that wait for one fail."""
        self._leave_inherited()
        if self._pool is not None:
            await self._pool.close()
            self._pool = None

    async def run(
        self, call: Call, arguments: Mapping[str, Any], actor: str | None = None, each: Each = None
    ) -> Rows:
        """Make the call on a connection of the pool, in a transaction of its own.

        With `each` one for each of these: the next is sent while the server is at the one before.
        """
        sql = statement(call, tuple(arguments))
        if self._pool is None:
            raise ConfigError(
                "the client is not open", hint="use it in a with statement, or call open() first"
            )
        if self._process != os.getpid():
            raise ConfigError(
                "the client was opened in another process, of which this one is a fork: "
                "they would share its connections",
                hint="call open() here, after the fork; docs/use/web.md says where servers fork",
            )
        async with self._pool.connection() as connection:
            try:
                if actor is None and each is None and connection.isolation_level is None:
                    return await fetch(connection, sql, arguments)
                async with connection.transaction():
                    if actor is not None:
                        # it ends with the transaction, so no pooler hands it on
                        await connection.execute(SET_ACTOR, {"actor": actor})
                    if each is not None:
                        return await _fetch_all(connection, call, each)
                    return await fetch(connection, sql, arguments)
            except psycopg.errors.ReadOnlySqlTransaction:
                # The server has become a standby; a new connection may reach the new primary.
                await connection.close()
                raise
            finally:
                connection.used_at = time.monotonic()

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
            [[pid]] = await (await connection.execute(BACKEND_PID)).fetchall()
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

    def _leave_inherited(self) -> None:
        """Let go of a pool that was opened before this process was forked, and touch none of it."""
        if self._pool is not None and self._process != os.getpid():
            _inherited.append(self._pool)
            self._pool = None


async def _configure(connection: AsyncPooled) -> None:
    """Calls need read committed: begin so where transactions are something else by default.

    Nothing is set in the session, which may be a pooler's.
    """
    read_as_usual(connection)
    [[isolation]] = await fetch(connection, DEFAULT_ISOLATION, {})
    if isolation != READ_COMMITTED:
        await connection.set_isolation_level(psycopg.IsolationLevel.READ_COMMITTED)
    connection.used_at = time.monotonic()


async def _check(connection: AsyncPooled) -> None:
    """Raises: psycopg.OperationalError, of a connection that has ended while it was idle."""
    is_fresh = time.monotonic() - connection.used_at < _IDLE_SECONDS
    if not is_fresh or says_something(connection.fileno()):
        await AsyncConnectionPool.check_connection(connection)


async def fetch(connection: psycopg.AsyncConnection[Any], sql: str, arguments: Mapping[str, Any]) -> Rows:
    """The rows of a statement."""
    rows: Rows = await (await ask(connection, sql, arguments)).fetchall()
    return rows


async def ask(
    connection: psycopg.AsyncConnection[Any], sql: str, arguments: Mapping[str, Any]
) -> psycopg.AsyncCursor[Any]:
    """The answer in binary: settings of the session change how times and the like are written."""
    return await connection.execute(sql, arguments, binary=True)


async def _fetch_all(connection: AsyncPooled, call: Call, each: Iterable[Mapping[str, Any]]) -> Rows:
    async with sent_together(connection):
        sent = [await ask(connection, statement(call, tuple(given)), given) for given in each]
        return [row for cursor in sent for row in await cursor.fetchall()]


@asynccontextmanager
async def sent_together(connection: psycopg.AsyncConnection[Any]) -> AsyncIterator[None]:
    """Send statements without waiting for the answers to those before."""
    async with connection.pipeline() as pipeline:
        try:
            yield
        except psycopg.Error:
            with suppress(psycopg.Error):  # of those behind it, which psycopg would log
                await pipeline.sync()
            raise


async def try_again(pool: AsyncConnectionPool[Any]) -> None:
    """Start to connect again, if a caller waits for it; else the next caller does."""
    if pool.get_stats().get("requests_waiting"):
        await pool.check()


class AsyncConnectionRunner:
    """The caller's psycopg connection, in whatever transaction it is."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection = connection

    async def run(self, call: Call, arguments: Mapping[str, Any], actor: str | None = None) -> Rows:
        """Make the call in the caller's transaction, which is never committed."""
        check_encoding(self._connection.info.encoding)
        idle = self._connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        if actor is not None and self._connection.autocommit and idle:
            # in autocommit the setting would end before the call
            async with self._connection.transaction():
                return await self._run(call, arguments, actor)
        return await self._run(call, arguments, actor)

    async def _run(self, call: Call, arguments: Mapping[str, Any], actor: str | None) -> Rows:
        # whatever kind of cursor the connection makes: of what class, and how it takes parameters
        async with psycopg.AsyncCursor(self._connection, row_factory=tuple_row) as cursor:
            if actor is not None:
                await cursor.execute(SET_ACTOR, {"actor": actor})
            await cursor.execute(statement_of_texts(call, tuple(arguments)), texts(arguments))
            return read_rows(call, await cursor.fetchall())


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
        return read_rows(call, result.all())


def runner_on(connection: Any) -> AsyncCallRunner:
    """The runner for a connection that the caller brings. Raises: BadArgument."""
    connection = async_unwrapped(connection)
    if isinstance(connection, psycopg.AsyncConnection):
        return AsyncConnectionRunner(connection)
    if is_asyncpg(connection):
        return AsyncpgRunner(connection)
    connections, sessions = async_sqlalchemy()
    if isinstance(connection, connections):
        return AsyncSqlAlchemyRunner(connection, is_session=False)
    if isinstance(connection, sessions):
        return AsyncSqlAlchemyRunner(connection, is_session=True)
    if isinstance(connection, AsyncCallRunner):  # of another part of this package
        return connection
    raise refusal("AsyncClient", connection)
