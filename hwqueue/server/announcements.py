"""What the database announces, heard on one connection for all workers that wait over HTTP.

It is a hint: workers poll as well, and while nobody listens, or behind a pooler that swallows
notifications, they only poll.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Collection
from contextlib import suppress

import psycopg

from hwqueue.connections import in_utf8, with_timeouts
from hwqueue.server.event_streams import EventStreams
from hwqueue.text import first_line
from hwqueue.worker.listen import CHANNEL

_CONNECT_SECONDS = 5
_AGAIN_SECONDS = 5.0
_LOOK_SECONDS = 1.0  # whether the server stops
_MOST_HEARD = 10_000
_log = logging.getLogger("hwqueue.server")


class Announcements:
    """Listens from the first worker that waits until the server ends.

    Args:
        dsn: Of the database.
        streams: Says when the server stops.
    """

    def __init__(self, dsn: str, streams: EventStreams) -> None:
        self._dsn = dsn
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
            self._listening = asyncio.create_task(self._listen())
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

    async def _listen(self) -> None:
        conninfo = in_utf8(with_timeouts(self._dsn, seconds=_CONNECT_SECONDS))
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as connection:
                    await connection.execute(f"listen {CHANNEL}")
                    self._since = time.time()
                    for news in {one for all_of in self._waiting.values() for one in all_of}:
                        news.set()
                    async for notification in connection.notifies():
                        self._hear(notification.payload)
            except psycopg.Error as error:
                _log.warning("not listening for workers, who poll: %s", first_line(error))
            self._since = math.inf
            await asyncio.sleep(_AGAIN_SECONDS)

    def _hear(self, payload: str) -> None:
        self._heard[payload] = time.time()
        self._heard.move_to_end(payload)
        if len(self._heard) > _MOST_HEARD:
            self._since = self._heard.popitem(last=False)[1]
        for news in self._waiting.get(payload, ()):
            news.set()
