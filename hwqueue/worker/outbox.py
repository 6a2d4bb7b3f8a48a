"""What running handlers say, until it is sent: at most once a second, for all of them at once.

A handler may say as much as it likes, from any thread.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar
from uuid import UUID

import psycopg

from hwqueue.errors import BadArgument, HwqueueError
from hwqueue.handler.attempt_log import MOST_LINES, Line
from hwqueue.handler.lease_facts import Report
from hwqueue.types import Claim

_log = logging.getLogger("hwqueue.worker")

_PAUSE_SECONDS = 1.0
_MOST_CLAIMS = 1000  # of one call
_LINES_AT_ONCE = 2000  # a call of very many would be a long one; all of a claim go together

Item = dict[str, Any]
Key = tuple[UUID, int]
"""Lease and claim token."""
Send = Callable[[Sequence[Item]], Awaitable[object]]
T = TypeVar("T")


class Outbox(ABC, Generic[T]):
    """What is unsent of each claim, and the loop that sends it.

    Args:
        send: Writes items to the database.

    Attributes:
        what: What it is, for the log.
    """

    what: ClassVar[str]

    def __init__(self, send: Send) -> None:
        self._send = send
        self._unsent: dict[Key, T] = {}
        self._loop = asyncio.get_running_loop()
        self._told = asyncio.Event()
        self._sending = asyncio.Lock()
        self._lock = threading.RLock()  # a finalizer that logs may run while it is held

    @abstractmethod
    def _add(self, key: Key, said: Item) -> None:
        """Put what a claim's handler says to what is unsent of that claim."""

    @abstractmethod
    def _batches(self, unsent: Mapping[Key, T]) -> Iterable[Sequence[Item]]:
        """The items of some claims, in batches for a call each."""

    def tell(self, claim: Claim, said: Item) -> None:
        """Send this soon, for the handler of this claim; from any thread."""
        with self._lock:
            is_first = not self._unsent
            self._add((claim.lease_id, claim.claim_token), said)
        if is_first:
            self._loop.call_soon_threadsafe(self._told.set)

    async def run(self) -> None:
        """Send what is told, with pauses, until cancelled."""
        while True:
            await self._told.wait()
            await self.flush()
            await asyncio.sleep(_PAUSE_SECONDS)

    async def flush(self) -> None:
        """Send what is unsent, as before claims are settled: nothing is recorded of them after.

        What is refused is dropped. So that it takes nothing else with it, the items of a refused
        batch are sent one by one.
        """
        if not self._unsent and not self._sending.locked():
            return
        async with self._sending:  # what is under way comes first
            self._told.clear()
            with self._lock:
                unsent, self._unsent = self._unsent, {}
            for batch in self._batches(unsent):
                await self._send_some(batch)

    async def _send_some(self, items: Sequence[Item]) -> None:
        try:
            await self._send(items)
        except (BadArgument, psycopg.DataError) as refusal:
            if len(items) == 1:
                _log.warning("%s not recorded: %s", self.what, refusal)
                return
            for item in items:
                await self._send_some([item])
        except (HwqueueError, psycopg.Error) as error:
            _log.warning("%s not recorded: %s", self.what, error)


class ProgressOutbox(Outbox[Report]):
    """The last report of each claim: the next one says more."""

    what = "progress was"

    def _add(self, key: Key, said: Item) -> None:
        self._unsent[key] = said

    def _batches(self, unsent: Mapping[Key, Report]) -> Iterable[Sequence[Item]]:
        reports = [_item_of(key, said) for key, said in unsent.items()]
        for start in range(0, len(reports), _MOST_CLAIMS):
            yield reports[start : start + _MOST_CLAIMS]


class LogOutbox(Outbox[deque[Line]]):
    """The last lines of each claim: as many as the database keeps, those before are dropped."""

    what = "log lines were"

    def _add(self, key: Key, said: Item) -> None:
        self._unsent.setdefault(key, deque(maxlen=MOST_LINES)).append(said)

    def _batches(self, unsent: Mapping[Key, deque[Line]]) -> Iterable[Sequence[Item]]:
        batch: list[Item] = []
        count = 0
        for key, lines in unsent.items():
            if batch and (count + len(lines) > _LINES_AT_ONCE or len(batch) == _MOST_CLAIMS):
                yield batch
                batch, count = [], 0
            batch.append(_item_of(key, {"lines": list(lines)}))
            count += len(lines)
        if batch:
            yield batch


def _item_of(key: Key, said: Mapping[str, Any]) -> Item:
    """What is said of a claim, with the claim."""
    lease_id, token = key
    return {"lease_id": str(lease_id), "claim_token": token, **said}
