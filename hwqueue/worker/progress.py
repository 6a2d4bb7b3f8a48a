"""What running handlers say of themselves, kept until it is sent: at most once a second.

A handler may report as often as it likes, from any thread: only the last report of a claim is kept.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Sequence
from uuid import UUID

import psycopg

from hwqueue.context import Report
from hwqueue.errors import BadArgument, HwqueueError
from hwqueue.types import Claim

_log = logging.getLogger("hwqueue.worker")

_PAUSE_SECONDS = 1.0
_MOST_REPORTS = 1000  # of one call

SendReports = Callable[[Sequence[Report]], Awaitable[object]]


class ProgressBook:
    """The last report of each claim, until it is sent.

    Args:
        send: Writes reports to the database.
    """

    def __init__(self, send: SendReports) -> None:
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._unsent: dict[tuple[UUID, int], Report] = {}
        self._told = asyncio.Event()
        self._sending = asyncio.Lock()

    def tell(self, claim: Claim, report: Report) -> None:
        """Keep a report of this claim's handler; from any thread."""
        key = {"lease_id": str(claim.lease_id), "claim_token": claim.claim_token}
        with self._lock:
            is_first = not self._unsent
            self._unsent[claim.lease_id, claim.claim_token] = key | report
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

        A report that is refused is dropped: the next one says more. So that it takes no others with
        it, those of a refused batch are sent one by one.
        """
        if not (self._unsent or self._sending.locked()):
            return
        async with self._sending:  # what is under way comes first
            self._told.clear()
            with self._lock:
                reports, self._unsent = list(self._unsent.values()), {}
            for start in range(0, len(reports), _MOST_REPORTS):
                await self._send_some(reports[start : start + _MOST_REPORTS])

    async def _send_some(self, reports: Sequence[Report]) -> None:
        try:
            await self._send(reports)
        except BadArgument as refusal:
            if len(reports) == 1:
                _log.warning("progress was not recorded: %s", refusal)
                return
            for report in reports:
                await self._send_some([report])
        except (HwqueueError, psycopg.Error) as error:
            _log.warning("progress was not recorded: %s", error)
