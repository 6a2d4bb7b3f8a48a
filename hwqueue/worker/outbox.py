"""What running handlers say, until it is sent: at most once a second, for all of them at once.

A handler may say as much as it likes, from any thread; `progress` and `attempt_log` say what is
kept of it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar
from uuid import UUID

import psycopg

from hwqueue.errors import BadArgument, HwqueueError
from hwqueue.types import Claim

_log = logging.getLogger("hwqueue.worker")

_PAUSE_SECONDS = 1.0

Item = dict[str, Any]
Key = tuple[UUID, int]
"""Lease and claim token."""
Send = Callable[[Sequence[Item]], Awaitable[object]]
T = TypeVar("T")


class Outbox(ABC, Generic[T]):
    """What is unsent of each claim, and the loop that sends it.

    Args:
        what: What it is, for the log.
        send: Writes items to the database.
    """

    def __init__(self, what: str, send: Send) -> None:
        self._what = what
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
                _log.warning("%s not recorded: %s", self._what, refusal)
                return
            for item in items:
                await self._send_some([item])
        except (HwqueueError, psycopg.Error) as error:
            _log.warning("%s not recorded: %s", self._what, error)


def item_of(key: Key, said: Mapping[str, Any]) -> Item:
    """What is said of a claim, with the claim."""
    lease_id, token = key
    return {"lease_id": str(lease_id), "claim_token": token, **said}
