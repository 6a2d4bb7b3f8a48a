"""Streams of events and log lines: how many are open, whose, what they follow.

They end when the server stops.

A request that waits for a lease holds a slot like a stream.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TypeVar

import anyio
import psycopg
from psycopg_pool import PoolTimeout

from hwqueue.client._pauses import Pauses
from hwqueue.server.problems import HTTPProblem

ItemT = TypeVar("ItemT")
PlaceT = TypeVar("PlaceT")

BATCH = 200  # events, or lines, of one poll
# Comments of a stream. CAUGHT_UP: what happens from now on will come. UNAVAILABLE: it will not,
# until CAUGHT_UP comes again.
CAUGHT_UP = "from here on"
UNAVAILABLE = "the database is not there just now"
IDLE = "nothing new"
_POLL_SECONDS = 1.0  # between two polls
_IDLE_POLLS = 15  # without an event; a proxy closes what stays silent
# Then it ends and the client comes back, with a token that is good by then.
_LIFETIME_SECONDS = 600.0


class EventStreams:
    """Counts the open streams of a server process."""

    def __init__(self, max_open: int, max_per_caller: int) -> None:
        self._max = max_open
        self._max_per_caller = max_per_caller
        self._open = Counter[str]()
        self.stopping = False

    def stop(self) -> None:
        """Let every stream end soon: the server is told to stop, and waits for them."""
        self.stopping = True

    @contextmanager
    def slot(self, who: str) -> Iterator[None]:
        """A slot for a stream of this caller: of a tenant, or of an actor without one.

        Raises: HTTPProblem (429: the caller has as many as one may have; 503: no slot is free).
        """
        if self._open[who] >= self._max_per_caller:
            raise HTTPProblem(
                429,
                f"you have {self._open[who]} streams open, and no more may be; all tokens of a "
                "tenant count together",
                hint="close one, or follow more with it: it takes several values of code",
                headers={"Retry-After": "10"},
            )
        # the last one is for who has none
        if self._open.total() >= self._max - (self._open[who] > 0):
            raise HTTPProblem(
                503,
                f"of {self._max} streams you have {self._open[who]} open, and others "
                f"{self._open.total() - self._open[who]}",
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

    async def wait_until(self, has_ended: Callable[[], Awaitable[bool]], at_most: float) -> None:
        """Ask until it has ended, for `at_most` seconds, or until the server stops.

        Raises: As `has_ended`.
        """
        pauses = Pauses(timedelta(seconds=at_most))
        while not self.stopping:
            # a client that disconnects during a call does not break a connection of the pool
            with anyio.CancelScope(shield=True):
                if await has_ended() or pauses.is_over:
                    return
            await asyncio.sleep(pauses.next(notified=False))

    async def follow(
        self,
        seen: PlaceT | None,
        *,
        check: Callable[[], Awaitable[object]],
        fetch: Callable[[PlaceT | None], Awaitable[tuple[list[ItemT], bool]]],
        place_of: Callable[[ItemT], PlaceT],
        beginning: PlaceT | None = None,
    ) -> AsyncIterator[ItemT | str]:
        """Items after the place `seen` (None: from now on) as they come, and comments.

        Args:
            check: Raises HTTPProblem once the follower may not follow any more: the stream ends.
            fetch: The first `BATCH` items after this place, oldest first; for None the last of all.
                And whether nothing will be added any more, which is asked before: then the stream
                ends after the last item.
            place_of: An item's place: the id of an event, the cursor of a line.
            beginning: The place before all items, where `seen` may be None.
        """
        until, idle, is_unavailable = time.monotonic() + _LIFETIME_SECONDS, 0, seen is None
        if not is_unavailable:
            yield CAUGHT_UP
        while time.monotonic() < until and not self.stopping:
            try:
                # a client that disconnects during a call does not break a connection of the pool
                with anyio.CancelScope(shield=True):
                    await check()
                    found, is_last = await fetch(seen)
            except HTTPProblem:
                return
            except (psycopg.Error, PoolTimeout):
                is_unavailable = True
                yield UNAVAILABLE
                await asyncio.sleep(5 * _POLL_SECONDS)
                continue
            if seen is None:
                seen, found = place_of(found[-1]) if found else beginning, []
            if is_unavailable:
                is_unavailable = False
                yield CAUGHT_UP
            for item in found:
                seen = place_of(item)
                yield item
            if is_last and len(found) < BATCH:
                return
            idle = 0 if found else idle + 1
            if idle and idle % _IDLE_POLLS == 0:
                yield IDLE
            if len(found) < BATCH:
                await asyncio.sleep(_POLL_SECONDS)
