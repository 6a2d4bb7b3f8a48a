"""What running handlers say, until it is sent: at most once a second, for all of them at once.

A handler may say as much as it likes, from any thread; `progress` and `logs` say what is kept.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

import psycopg

from hwqueue.errors import BadArgument, HwqueueError

_log = logging.getLogger("hwqueue.worker")

_PAUSE_SECONDS = 1.0

Item = dict[str, Any]
Send = Callable[[Sequence[Item]], Awaitable[object]]


class Outbox(ABC):
    """What is unsent, and the loop that sends it.

    Args:
        what: What it is, for the log.
        send: Writes items to the database.
    """

    def __init__(self, what: str, send: Send) -> None:
        self._what = what
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._told = asyncio.Event()
        self._sending = asyncio.Lock()
        self._lock = threading.RLock()  # a finalizer that logs may run while it is held

    @property
    @abstractmethod
    def _is_empty(self) -> bool:
        """Whether nothing is unsent."""

    @abstractmethod
    def _take(self) -> Iterable[Sequence[Item]]:
        """All that is unsent, in batches for a call each; nothing is, afterwards."""

    def _wake(self) -> None:
        """Something is to be sent; from any thread."""
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
        if self._is_empty and not self._sending.locked():
            return
        async with self._sending:  # what is under way comes first
            self._told.clear()
            with self._lock:
                batches = list(self._take())
            for batch in batches:
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
