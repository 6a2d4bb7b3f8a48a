"""Methods about what is measured."""

from __future__ import annotations

from hwqueue import calls
from hwqueue.client._async.caller import AsyncCaller
from hwqueue.types import Minute, Sample


class AsyncStatistics(AsyncCaller):
    """Look at figures: for monitoring, for charts."""

    async def metrics(self) -> list[Sample]:
        """Everything that monitoring wants to know, at this moment.

        `hwqueue.metrics` makes Prometheus metrics of it.

        SQL: metrics. Safe inside your transaction: yes.
        """
        return await self._rows(calls.METRICS)

    async def throughput(self, queue: str | None = None, *, minutes: int = 60) -> list[Minute]:
        """What ended in each of the last minutes, oldest first; the last one is not over.

        Args:
            queue: None: all of them together.
            minutes: 1 to 1440.

        Raises: QueueUnknown, BadArgument.
        SQL: throughput. Safe inside your transaction: yes.
        """
        return await self._rows(calls.THROUGHPUT, p_queue=queue, p_minutes=minutes)
