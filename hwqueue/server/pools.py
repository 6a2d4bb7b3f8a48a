"""The server's connections: many for what is quick, a few for what may take long.

A page of statistics with many viewers cannot keep anybody from spawning, and no tenant the others
(`fair_slots`). Whatever the database does, each request has its answer in bounded time: a
connection that says nothing for longer than a statement may take is given up, and so is one that
fails its check.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache, partial
from typing import Any

import psycopg
from psycopg.conninfo import make_conninfo
from psycopg_pool import AsyncConnectionPool

from hwqueue.calls import ACT_AS, BEGIN, ENTER, ENTERED_EPOCH, Call
from hwqueue.client import AsyncClient
from hwqueue.client._async.runner import RECONNECT_SECONDS, ask, fetch, sent_together, try_again
from hwqueue.client._drivers import Rows
from hwqueue.client._pooled import read_as_usual, says_something
from hwqueue.connections import WatchedAsyncConnection, with_timeouts
from hwqueue.server.fair_slots import FairSlots, Usage
from hwqueue.server.large_requests import LargeClient, RunInThread
from hwqueue.server.problems import HTTPProblem
from hwqueue.server.roles import counted_as
from hwqueue.server.settings import ServerSettings
from hwqueue.single_flight import SingleFlight
from hwqueue.statements import statement
from hwqueue.types import SchemaVersion

_CONNECT_SECONDS = 5
# Of a connection that lay idle: whether anybody is there.
_CHECK_SECONDS = 2.0
# Beyond what a statement may take: for the server to say that it has taken too long.
_GRACE_SECONDS = 2.0
_PROBE_SECONDS = 5.0

_Pool = AsyncConnectionPool[WatchedAsyncConnection]


@dataclass(frozen=True, slots=True)
class _Runner:
    """A connection of the server's own: rows come in binary, which psycopg reads at least cost."""

    connection: WatchedAsyncConnection

    async def run(self, call: Call, arguments: Mapping[str, Any], actor: str | None = None) -> Rows:
        """Make the call in the transaction of a request, which has its actor."""
        return await fetch(self.connection, statement(call, tuple(arguments)), arguments)


@dataclass(frozen=True, slots=True)
class _NodeRunner:
    """A connection for the one call of a request of a node (`ENTER`).

    All of its transaction is one round trip: the server skips what comes after a statement that fails.
    """

    connection: WatchedAsyncConnection
    entering: Mapping[str, Any]

    async def run(self, call: Call, arguments: Mapping[str, Any], actor: str | None = None) -> Rows:
        """Open the node, make the call and commit."""
        sql = _at_its_epoch(call, tuple(arguments))
        async with sent_together(self.connection):
            await self.connection.execute(BEGIN)
            await self.connection.execute(ENTER, self.entering)
            answer = await ask(self.connection, sql, arguments)
            await self.connection.execute("commit")
        return await answer.fetchall()


@lru_cache
def _at_its_epoch(call: Call, given: tuple[str, ...]) -> str:
    """The statement of a call of an open node."""
    if "p_epoch" not in call.required:
        return statement(call, given)
    return statement(call, (*given, "p_epoch")).replace("%(p_epoch)s", ENTERED_EPOCH)


class Pools:
    """Clients for the length of a transaction, each in the name of an actor.

    Nothing is set for longer than a transaction, so that PgBouncer may be in between.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self._call_timeout = settings.call_timeout
        self._read_timeout = settings.read_timeout
        # one more than callers may have: whose token it is must be known before anything else
        self._calls = _pool("calls", settings, settings.pool_size + 1, settings.call_timeout)
        self._reads = _pool(
            "reads", settings, settings.read_pool_size, settings.read_timeout, f"{BEGIN} read only"
        )
        self._usage = Usage()
        self._call_slots, self._read_slots = (
            FairSlots(size, settings.pool_timeout.total_seconds(), f"connections for {what}", self._usage)
            for what, size in (("calls", settings.pool_size), ("reads", settings.read_pool_size))
        )
        self._probes = SingleFlight[SchemaVersion]()

    async def open(self) -> None:
        """Begin to connect; does not wait for the database, which may be away."""
        await self._calls.open()
        await self._reads.open()

    async def close(self) -> None:
        """Close all connections."""
        await self._calls.close()
        await self._reads.close()

    async def schema(self) -> SchemaVersion:
        """What is installed; asked once for all who ask at a time, for they need no token.

        Raises: HTTPProblem (503), if that takes longer than a probe waits.
        """
        try:
            return await asyncio.wait_for(self._probes.do(None, self._probe), _PROBE_SECONDS)
        except TimeoutError as error:
            raise HTTPProblem(503, "the database does not answer") from error

    async def _probe(self) -> SchemaVersion:
        async with self.own_call("readiness probe") as client:
            return await client.schema_version()

    @asynccontextmanager
    async def call(
        self, actor: str, tenant: str | None = None, run_in_thread: RunInThread | None = None
    ) -> AsyncIterator[AsyncClient]:
        """A client for what touches a few rows; all its calls are one transaction.

        Args:
            tenant: The only one that it may see and name; None: all.
            run_in_thread: Runs what takes long in a thread; None: nothing will.

        Raises: psycopg_pool.PoolTimeout, `Busy` among them; in the calls,
            psycopg.errors.QueryCanceled.
        """
        async with (
            self._call_slots.slot(counted_as(actor, tenant)),
            self.own_call(actor, tenant, run_in_thread) as client,
        ):
            yield client

    @asynccontextmanager
    async def own_call(
        self, actor: str, tenant: str | None = None, run_in_thread: RunInThread | None = None
    ) -> AsyncIterator[AsyncClient]:
        """The same without a slot: for what the server itself asks; nothing of it takes long."""
        _beginning.set(self._acting(actor, tenant, self._call_timeout))
        async with self._call_connection() as connection:
            yield _client(_Runner(connection), run_in_thread)

    @asynccontextmanager
    async def node_call(
        self, actor: str, key: Mapping[str, Any], run_in_thread: RunInThread | None = None
    ) -> AsyncIterator[AsyncClient]:
        """A client for the one call of a request of a node, which is opened with this key (`ENTER`).

        Raises: as `call`; in the call also what `enter_node` does.
        """
        _beginning.set(None)
        who = self._acting(actor, None, self._call_timeout).who
        async with self._call_slots.slot(actor), self._call_connection() as connection:
            yield _client(_NodeRunner(connection, {**who, **key}), run_in_thread)

    @asynccontextmanager
    async def _call_connection(self) -> AsyncIterator[WatchedAsyncConnection]:
        async with self._calls.connection() as connection:
            try:
                yield connection
            except psycopg.errors.ReadOnlySqlTransaction:
                # The server has become a standby; a new connection may reach the new primary.
                await connection.close()
                raise

    @asynccontextmanager
    async def read(
        self, actor: str, tenant: str | None = None, run_in_thread: RunInThread | None = None
    ) -> AsyncIterator[AsyncClient]:
        """A client for what may read a lot; it writes nothing.

        Args, raises: as `call`.
        """
        async with self._read_slots.slot(counted_as(actor, tenant)):
            _beginning.set(self._acting(actor, tenant, self._read_timeout))
            async with self._reads.connection() as connection:
                yield _client(_Runner(connection), run_in_thread)

    def _acting(self, actor: str, tenant: str | None, timeout: timedelta) -> _Beginning:
        milliseconds = str(round(timeout.total_seconds() * 1000))
        who = {"actor": actor, "tenant": tenant or "", "timeout": milliseconds}
        return _Beginning(who, partial(self._usage.note_answer, counted_as(actor, tenant)))


def _client(runner: _Runner | _NodeRunner, run_in_thread: RunInThread | None) -> AsyncClient:
    if run_in_thread is not None:
        return LargeClient.threaded(runner, run_in_thread)
    return AsyncClient.on(runner)


@dataclass(frozen=True, slots=True)
class _Beginning:
    """Who begins a transaction (`ACT_AS`), and who is told how many seconds that took."""

    who: Mapping[str, str]
    note_answer: Callable[[float], None]


# Of the request that takes a connection: the pool hands its check the connection alone. None: the request
# begins its transaction itself.
_beginning: ContextVar[_Beginning | None] = ContextVar("_beginning")


def _pool(
    name: str,
    settings: ServerSettings,
    size: int,
    timeout: timedelta,
    begin: str = BEGIN,
) -> _Pool:
    """A pool of connections whose statements take at most `timeout`, and whose transactions begin so."""

    async def configure(connection: WatchedAsyncConnection) -> None:
        read_as_usual(connection)
        connection.answer_within = timeout.total_seconds() + _GRACE_SECONDS

    return AsyncConnectionPool(
        make_conninfo(
            with_timeouts(settings.dsn, seconds=_CONNECT_SECONDS),
            application_name=f"hwqueue serve: {name}",
        ),
        name=name,
        min_size=1,
        max_size=size,
        timeout=settings.pool_timeout.total_seconds(),
        reconnect_timeout=RECONNECT_SECONDS,
        reconnect_failed=try_again,
        connection_class=WatchedAsyncConnection,
        configure=configure,
        check=partial(_begin, begin),
        # to begin is a statement of ours, which psycopg would not send together with others
        kwargs={"prepare_threshold": None, "autocommit": True},
        open=False,
    )


async def _begin(begin: str, connection: WatchedAsyncConnection) -> None:
    """Begin the transaction of a request in one round trip, which shows whether the server is there.

    Raises: psycopg.OperationalError; the pool then tries another connection.
    """
    if says_something(connection.fileno()):
        await connection.close()
        raise psycopg.OperationalError("the server has ended the connection")
    beginning, begun = _beginning.get(), time.monotonic()
    if beginning is None:
        return
    usual, connection.answer_within = connection.answer_within, _CHECK_SECONDS
    try:
        async with connection.pipeline():
            await connection.execute(begin)
            await connection.execute(ACT_AS, beginning.who)
    finally:
        connection.answer_within = usual
    beginning.note_answer(time.monotonic() - begun)
