"""LISTEN, so that a worker hears of new work before its next poll, and of stops at once.

A notification is a hint and may be lost: polling is the truth. Through PgBouncer in transaction
mode LISTEN succeeds and hears nothing, so a worker first sends a notification to itself.

Any login of the database may NOTIFY, and hear what others send. So payloads are digests that the
database makes of queues, and of the node, for who may work on them; others are passed over. Who
repeats one wakes a worker at a rate: for claims that find nothing, and for heartbeats.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID, uuid4

import psycopg
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_random_exponential

from hwqueue.client import AsyncClient
from hwqueue.client._pauses import Rate
from hwqueue.connections import in_utf8
from hwqueue.errors import HwqueueError
from hwqueue.text import first_line

_log = logging.getLogger("hwqueue.worker")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a worker listens for.

    Attributes:
        queues: Whose new work calls `on_work`.
        node_id: Whose claims, when they end or are to stop, call `on_stop`.
    """

    queues: Collection[str]
    node_id: UUID
    on_work: Callable[[], None]
    on_stop: Callable[[], None]


CHANNEL = "hwqueue"
_STOPS_PER_SECOND = 2.0
_FIRST_INTERVAL = 0.005  # seconds
_LONGEST_INTERVAL = 0.2
_ANSWER_SECONDS = 5.0
_TRY_AGAIN_SECONDS = 300.0
_MOST_WAIT_SECONDS = 60.0
_LONGEST_HTTP_PAUSE_SECONDS = 10.0


class WakeUps:
    """Passes wake-ups on as soon as each may be; those between are one.

    Args:
        wakes: What is called.
        wait: Seconds until it may be.
    """

    def __init__(self, wakes: Callable[[], None], wait: Callable[[], float]) -> None:
        self._wakes = wakes
        self._wait = wait
        self._later: asyncio.TimerHandle | None = None

    def wake(self) -> None:
        """Call it as soon as it may be, if that is not yet arranged."""
        if self._later is None:
            self._later = asyncio.get_running_loop().call_later(self._wait(), self._wake_late)

    def close(self) -> None:
        """Forget what is arranged."""
        if self._later is not None:
            self._later.cancel()
            self._later = None

    def _wake_late(self) -> None:
        self.close()
        self._wakes()


class Announced(WakeUps):
    """Wakes for announced work: at once, unless the last claims for such work found none.

    All idle workers hear of a lease, and one gets it. The others look again at intervals that grow,
    so the next ones are left to that one. If it has no free slot any more, may not run the next one,
    or is stopped, another finds that at its next look, and is among the first again.
    """

    def __init__(self, wakes: Callable[[], None]) -> None:
        super().__init__(wakes, self._due_in)
        self._clock = asyncio.get_running_loop().time
        self._interval = 0.0
        self._next_at = self._clock()
        self._is_heard = False

    def begin(self) -> bool:
        """A claim begins, which is for all that was announced; whether anything was."""
        self.close()
        is_heard, self._is_heard = self._is_heard, False
        return is_heard

    def answered(self, found: object, is_heard: bool) -> None:
        """A claim that `begin` was called for has found something, or not."""
        if found:  # it stays among the first while half of its looks find something
            self.close()
            self._interval, self._next_at = self._interval / 4, self._clock()
        elif is_heard:
            self._interval = min(max(4 * self._interval, _FIRST_INTERVAL), _LONGEST_INTERVAL)
            self._next_at = self._clock() + self._interval * random.uniform(0.8, 1)

    def _due_in(self) -> float:
        self._is_heard = True
        return max(0.0, self._next_at - self._clock())


async def listen(conninfo: str, wanted: Wanted) -> None:
    """Call `on_work` and `on_stop` when there is reason to; reconnect for ever.

    Runs until it is cancelled. While there is no connection, or one that hears nothing, the worker
    polls, and learns from its heartbeats what is to stop.

    SQL: wake_payloads, node_wake_payload.
    """
    stop = WakeUps(wanted.on_stop, Rate(per_second=_STOPS_PER_SECOND).take)
    wakes: dict[str | None, Callable[[], None]] = {}

    async def learn(connection: psycopg.AsyncConnection) -> None:
        client = AsyncClient.on(connection)
        wakes.update({one.payload: wanted.on_work for one in await client.wake_payloads(list(wanted.queues))})
        wakes[await client.node_wake_payload(wanted.node_id)] = stop.wake

    def hear(payload: str | None) -> None:
        for wake in {wakes[each] for each in wakes if payload in (None, each)}:
            wake()

    try:
        await follow(conninfo, hear, learn)
    finally:
        stop.close()


async def follow(
    conninfo: str,
    hear: Callable[[str | None], None],
    learn: Callable[[psycopg.AsyncConnection], Awaitable[None]] | None = None,
) -> None:
    """Call `hear` with all payloads, and with None when something may have been missed; reconnect for ever.

    Args:
        learn: Called with each new connection.
    """
    connecting = AsyncRetrying(
        retry=retry_if_exception_type((psycopg.Error, HwqueueError)),
        wait=wait_random_exponential(multiplier=0.5, max=_MOST_WAIT_SECONDS),
        before_sleep=_Failures().tell,
    )
    is_told = False
    while True:
        listening: psycopg.AsyncConnection | None = await connecting(_subscribe, conninfo, learn)
        if listening is not None:
            _log.info("listening for new work")
            hear(None)
            try:
                async with listening:
                    async for notification in listening.notifies():
                        hear(notification.payload)
            except psycopg.Error as error:
                _log.warning("LISTEN was cut off, polling until it is back: %s", error)
            continue
        if not is_told:
            _log.warning(
                "LISTEN hears nothing on this connection, polling instead: a pooler such as "
                "PgBouncer in transaction mode swallows notifications; give a direct "
                "connection with --listen, or say --listen off"
            )
            is_told = True
        await asyncio.sleep(_TRY_AGAIN_SECONDS)


async def listen_over_http(
    wait: Callable[[Collection[str], float | None], Awaitable[Mapping[str, Any]]], wanted: Wanted
) -> None:
    """The same where the HTTP server listens, and is asked what it has heard."""
    stop = WakeUps(wanted.on_stop, Rate(per_second=_STOPS_PER_SECOND).take)
    after: float | None = None
    said = ""
    try:
        while True:
            try:
                heard = await wait(wanted.queues, after)
            except HwqueueError as error:
                if (why := first_line(error)) != said:
                    _log.warning("the server does not listen for this worker, polling instead: %s", why)
                said = why
                await asyncio.sleep(_LONGEST_HTTP_PAUSE_SECONDS * random.uniform(0.5, 1))
                continue
            after, said = heard["after"], ""
            if heard["work"]:
                wanted.on_work()
            if heard["stop"]:
                stop.wake()
    finally:
        stop.close()


async def _subscribe(
    conninfo: str, learn: Callable[[psycopg.AsyncConnection], Awaitable[None]] | None
) -> psycopg.AsyncConnection | None:
    """A connection that listens; None: nothing comes through."""
    connection = await _connect(conninfo)
    try:
        if not await _hears(connection, conninfo):
            await connection.close()
            return None
        if learn is not None:
            await learn(connection)
        await connection.execute(f"listen {CHANNEL}")
    except BaseException:
        await connection.close()
        raise
    return connection


async def _connect(conninfo: str) -> psycopg.AsyncConnection:
    return await psycopg.AsyncConnection.connect(in_utf8(conninfo), autocommit=True)


async def _hears(connection: psycopg.AsyncConnection, conninfo: str) -> bool:
    """Whether it hears what another connection says, on a channel that nobody else listens to."""
    channel = f"hwqueue_{uuid4().hex}"
    await connection.execute(f"listen {channel}")
    async with await _connect(conninfo) as other:
        await other.execute("select pg_catalog.pg_notify(%s, '')", [channel])
    heard = [
        notification async for notification in connection.notifies(timeout=_ANSWER_SECONDS, stop_after=1)
    ]
    await connection.execute(f"unlisten {channel}")
    return bool(heard)


class _Failures:
    """Says why it cannot listen: once for each reason in a row, in one line."""

    def __init__(self) -> None:
        self._said: str | None = None

    def tell(self, state: RetryCallState) -> None:
        """A try failed; another one follows."""
        why = _why(state.outcome.exception() if state.outcome else None)
        if state.attempt_number == 1 or why != self._said:
            _log.warning("cannot LISTEN, polling instead and trying again: %s", why)
        self._said = why


def _why(error: BaseException | None) -> str:
    """An error as one line, without the excerpt of SQL that the driver adds."""
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return f"{first_line(error)}; the login that listens needs the role hwqueue_worker"
    return " ".join(str(error).split())
