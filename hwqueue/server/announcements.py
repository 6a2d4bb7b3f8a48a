"""What the database announces, heard on one connection for all workers that wait over HTTP.

It is a hint: workers poll as well, and while nobody listens, or behind a pooler that swallows
notifications, they only poll.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Collection
from contextlib import suppress

from hwqueue.connections import with_timeouts
from hwqueue.server.event_streams import EventStreams
from hwqueue.worker.listen import follow

_CONNECT_SECONDS = 5
_LOOK_SECONDS = 1.0  # whether the server stops
_MOST_HEARD = 10_000


class Announcements:
    """Listens from the first worker that waits until the server ends.

    Args:
        dsn: Of the database.
        streams: Says when the server stops.
    """

    def __init__(self, dsn: str, streams: EventStreams) -> None:
        self._conninfo = with_timeouts(dsn, seconds=_CONNECT_SECONDS)
        self._streams = streams
        self._heard = OrderedDict[str, float]()
        self._since = math.inf  # what was announced before this is not known
        self._waiting: dict[str, set[asyncio.Event]] = {}
        self._listening: asyncio.Task[None] | None = None

    async def wait(
        self, payloads: Collection[str], after: float | None, at_most: float
    ) -> tuple[Collection[str], float]:
        """Wait until one of the payloads is announced after a time of this clock, or for `at_most` seconds.

        Returns: Those that were, all where that is not known; and the time to ask after next.
        """
        if self._listening is None:
            self._listening = asyncio.create_task(follow(self._conninfo, self._hear))
        news = asyncio.Event()
        for payload in payloads:
            self._waiting.setdefault(payload, set()).add(news)
        try:
            return await self._wait(payloads, -math.inf if after is None else after, at_most, news)
        finally:
            for payload in payloads:
                self._waiting[payload].discard(news)
                if not self._waiting[payload]:
                    del self._waiting[payload]

    async def _wait(
        self, payloads: Collection[str], after: float, at_most: float, news: asyncio.Event
    ) -> tuple[Collection[str], float]:
        deadline = time.monotonic() + at_most
        while True:
            now = time.time()
            if now >= self._since > after:
                return payloads, now
            heard = [one for one in payloads if self._heard.get(one, -math.inf) > after]
            left = deadline - time.monotonic()
            if heard or left <= 0 or self._streams.stopping:
                return heard, now
            with suppress(TimeoutError):
                await asyncio.wait_for(news.wait(), min(left, _LOOK_SECONDS))
            news.clear()

    async def close(self) -> None:
        """Stop listening."""
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait({self._listening})

    def _hear(self, payload: str | None) -> None:
        if payload is None:
            self._since = time.time()
            for news in {one for all_of in self._waiting.values() for one in all_of}:
                news.set()
            return
        self._heard[payload] = time.time()
        self._heard.move_to_end(payload)
        if len(self._heard) > _MOST_HEARD:
            self._since = self._heard.popitem(last=False)[1]
        for news in self._waiting.get(payload, ()):
            news.set()
