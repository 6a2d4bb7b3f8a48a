"""What all viewers share: values that one task at a time reads; the last ones are kept."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic
from typing import Any, Generic, TypeVar

from hwqueue.text import one_line

T = TypeVar("T")
_log = logging.getLogger("hwqueue.dashboard")
_MOST = 256  # values kept at once; the one unused longest goes first
_WAIT = 0.3  # seconds that a viewer waits for a newer value when there is one to show
_REST = 10  # a value is kept at least this many times as long as it took to read


@dataclass(frozen=True, slots=True)
class Kept(Generic[T]):
    """A value and when it was read; `stale`: a newer read has failed since."""

    value: T
    at: datetime
    stale: bool = False


class Keeper:
    """Reads each value at most once in its time, however many ask for it at once."""

    def __init__(self, now: Callable[[], float] = monotonic, wait: float = _WAIT) -> None:
        self._now = now
        self._wait = wait
        self._kept: OrderedDict[Hashable, tuple[float, Kept[Any]]] = OrderedDict()
        self._reading: dict[Hashable, asyncio.Task[Kept[Any]]] = {}
        self._forgotten = 0

    async def get(self, key: Hashable, seconds: float, read: Callable[[], Awaitable[T]]) -> Kept[T]:
        """The value of `key`, no older than `seconds` if it can be read fast enough.

        What is slow to read is read more rarely, and the one before is shown meanwhile: a page of
        statistics does not keep the database busy.

        Raises: whatever `read` raises, when there is no earlier value to give instead.
        """
        found = self._kept.get(key)
        if found is not None and self._now() < found[0]:
            self._kept.move_to_end(key)
            return found[1]
        task = self._reading.get(key)
        if task is None:
            task = asyncio.ensure_future(self._read(key, seconds, read))
            self._reading[key] = task
            task.add_done_callback(lambda done: self._over(key, done))
        # A viewer who leaves does not take the value from the others who wait for it.
        if found is None:
            return await asyncio.shield(task)
        await asyncio.wait({task}, timeout=self._wait)
        return task.result() if task.done() else found[1]

    def forget(self) -> None:
        """Something was changed: read everything afresh, what is being read included."""
        self._forgotten += 1
        self._reading.clear()
        self._kept = OrderedDict(
            (key, (float("-inf"), kept)) for key, (_, kept) in self._kept.items()
        )

    async def _read(
        self, key: Hashable, seconds: float, read: Callable[[], Awaitable[T]]
    ) -> Kept[T]:
        asked, forgotten = self._now(), self._forgotten
        try:
            kept = Kept(await read(), datetime.now(UTC))
        except Exception as error:
            found = self._kept.get(key)
            if found is None:
                raise
            _log.warning("%s is shown as of %s: %s", key, found[1].at.isoformat(), one_line(error))
            kept = Kept(found[1].value, found[1].at, stale=True)
        if forgotten == self._forgotten:
            until = asked + max(seconds, _REST * (self._now() - asked))
            self._kept[key] = (until, kept)
            self._kept.move_to_end(key)
            if len(self._kept) > _MOST:
                self._kept.popitem(last=False)
        return kept

    def _over(self, key: Hashable, task: asyncio.Task[Kept[Any]]) -> None:
        if self._reading.get(key) is task:
            del self._reading[key]
