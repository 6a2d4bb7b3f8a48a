"""Streams: how many are open, whose, what they follow; they end when the server stops."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import anyio
import psycopg
from psycopg_pool import PoolTimeout

from hwqueue.server.problems import Refusal
from hwqueue.types import Event

AT_ONCE = 200  # events of one look
# Comments of a stream: what happens from now on will come; it will not, until HERE comes again.
HERE = "from here on"
AWAY = "the database is not there just now"
IDLE = "nothing new"
_EVERY_SECONDS = 1.0  # between two looks
_IDLE_LOOKS = 15  # without an event; a proxy closes what stays silent
# Then it ends and the client comes back, with a token that is good by then.
_LIFETIME_SECONDS = 600.0


class Streams:
    """Counts the open streams of a server process."""

    def __init__(self, most: int, most_of_one: int) -> None:
        self._most = most
        self._most_of_one = most_of_one
        self._open = Counter[str]()
        self.stopping = False

    @contextmanager
    def ended_by_signals(self) -> Iterator[None]:
        """Let every stream end, soon after the server is told to stop: it waits for them.

        The server's own handlers of signals are called after.
        """
        if threading.current_thread() is not threading.main_thread():
            yield  # only the main thread is told of signals
            return

        def stop(number: int, frame: FrameType | None) -> None:
            self.stopping = True
            handler = before[signal.Signals(number)]
            if callable(handler):
                handler(number, frame)

        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def one(self, who: str) -> Iterator[None]:
        """Room for a stream of somebody's.

        Raises: Refusal, 429 if they have as many as one may have; 503 if there is no room at all.
        """
        if self._open[who] >= self._most_of_one:
            raise Refusal(
                429,
                f"you have {self._open[who]} streams open, and no more may be",
                hint="close one, or follow more with it: it takes several values of code",
                headers={"Retry-After": "10"},
            )
        if self._open.total() >= self._most:
            raise Refusal(
                503,
                f"{self._most} streams are open, and no more may be",
                hint="come back later, or ask GET /api/v1/events?after=... now and then",
                headers={"Retry-After": "10"},
            )
        self._open[who] += 1
        try:
            yield
        finally:
            self._open[who] -= 1
            if not self._open[who]:
                del self._open[who]  # there may be many addresses over time

    async def follow(
        self,
        seen: int | None,
        *,
        still: Callable[[], Awaitable[object]],
        look: Callable[[int | None], Awaitable[list[Event]]],
    ) -> AsyncIterator[Event | str]:
        """Events after the one with the id `seen` (None: from now on) as they come, and comments.

        Args:
            still: Raises Refusal as soon as the follower may not follow any more: the stream ends.
            look: The first `AT_ONCE` events after the one with this id, oldest first; for None the
                last event of all, whatever it is about.
        """
        until, idle, is_away = time.monotonic() + _LIFETIME_SECONDS, 0, seen is None
        if not is_away:
            yield HERE
        while time.monotonic() < until and not self.stopping:
            try:
                # a client that leaves in the middle of it does not break a connection of the pool
                with anyio.CancelScope(shield=True):
                    await still()
                    found = await look(seen)
            except Refusal:
                return
            except (psycopg.Error, PoolTimeout):
                is_away = True
                yield AWAY
                await asyncio.sleep(5 * _EVERY_SECONDS)
                continue
            if seen is None:
                seen, found = max((event.event_id for event in found), default=0), []
            if is_away:
                is_away = False
                yield HERE
            for event in found:
                seen = event.event_id
                yield event
            idle = 0 if found else idle + 1
            if idle and idle % _IDLE_LOOKS == 0:
                yield IDLE
            if len(found) < AT_ONCE:
                await asyncio.sleep(_EVERY_SECONDS)
