"""What all viewers share: a read-through cache with single flight, which serves stale values."""

from __future__ import annotations

import logging
from asyncio import shield, wait
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from time import monotonic
from typing import Any, Generic, TypeVar

from hwqueue.single_flight import SingleFlight
from hwqueue.text import one_line

T = TypeVar("T")
_log = logging.getLogger("hwqueue.dashboard")
_MAX_ENTRIES = 256  # the least recently used one is evicted first
_WAIT = 0.3  # seconds that a viewer waits for a newer value while an older one can be shown
_REST = 10  # a value is valid for at least as many times as long as it took to read
_MOST_SECONDS = 30.0  # but no longer; an older one is shown only where a newer cannot be read


@dataclass(frozen=True, slots=True)
class Cached(Generic[T]):
    """A value and when it was read; `stale_since`: when a newer read first failed.

    asked_at: by the cache's clock.
    """

    value: T
    at: datetime
    stale_since: datetime | None = None
    asked_at: float = float("-inf")

    @property
    def stale(self) -> bool:
        """Whether it could not be read again."""
        return self.stale_since is not None


class ReadCache:
    """Reads each value at most once in its time to live, however many viewers ask for it."""

    def __init__(self, now: Callable[[], float] = monotonic, wait: float = _WAIT) -> None:
        self._now = now
        self._wait = wait
        self._entries: OrderedDict[Hashable, tuple[float, Cached[Any]]] = OrderedDict()
        self._flights = SingleFlight[Cached[Any]]()
        self._generation = 0

    async def get(self, key: Hashable, seconds: float, read: Callable[[], Awaitable[T]]) -> Cached[T]:
        """The value of `key`, no older than `seconds` if it can be read fast enough.

        What is slow to read is read less often, and the value before is shown meanwhile: a page of
        statistics does not keep the database busy. Where that one is older than `_MOST_SECONDS`,
        as when nobody has looked for a while, the newer one is waited for.

        Raises: whatever `read` raises, when there is no earlier value to return instead.
        """
        found = self._entries.get(key)
        if found is not None and self._now() < found[0]:
            self._entries.move_to_end(key)
            return found[1]
        task = self._flights.start(key, lambda: self._read(key, seconds, read))
        if found is None or self._now() - found[1].asked_at > _MOST_SECONDS:
            # a viewer who leaves does not cancel the read that others wait for
            return await shield(task)
        await wait({task}, timeout=self._wait)
        return task.result() if task.done() else found[1]

    def forget(self) -> None:
        """Something was changed: read every value again, those being read included."""
        self._generation += 1
        self._flights.forget()
        self._entries = OrderedDict(
            (key, (float("-inf"), cached)) for key, (_, cached) in self._entries.items()
        )

    async def _read(self, key: Hashable, seconds: float, read: Callable[[], Awaitable[T]]) -> Cached[T]:
        asked_at, generation = self._now(), self._generation
        try:
            cached = Cached(await read(), datetime.now(UTC), asked_at=asked_at)
        except Exception as error:
            found = self._entries.get(key)
            if found is None:
                raise
            _log.warning("%s is shown as of %s: %s", key, found[1].at.isoformat(), one_line(error))
            cached = replace(found[1], stale_since=found[1].stale_since or datetime.now(UTC))
        if generation == self._generation:
            rest = min(_REST * (self._now() - asked_at), _MOST_SECONDS)
            valid_until = asked_at + max(seconds, rest)
            self._entries[key] = (valid_until, cached)
            self._entries.move_to_end(key)
            if len(self._entries) > _MAX_ENTRIES:
                self._entries.popitem(last=False)
        return cached
