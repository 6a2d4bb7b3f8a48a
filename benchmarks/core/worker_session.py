"""A worker with an event loop of its own, driven like any other session."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from hwqueue.worker.runtime import spare_collector

# A step is what the handlers did in this time; looking more often would cost the worker.
_STEP_SECONDS = 0.05
_DRY_SECONDS = 10.0


class AnyWorker(Protocol):
    """A worker that runs in an event loop until it is told to stop."""

    async def run(self) -> Any:
        """Work."""

    def stop(self) -> None:
        """Stop gracefully; called in the loop."""


class WorkerSession:
    """A worker in a thread of this process, which has nothing else to do.

    Args:
        make: Called in the worker's event loop with what a handler calls when it is done.
    """

    def __init__(self, make: Callable[[Callable[[], None]], AnyWorker]) -> None:
        self._make = make
        self._done = 0
        self._seen = 0
        self._loop = asyncio.new_event_loop()
        self._worker: AnyWorker | None = None
        self._thread = ThreadPoolExecutor(1)
        self._ended = self._thread.submit(self._run)

    def step(self) -> int:
        """Wait a moment; how many leases were done in it. 0 after some seconds without any."""
        deadline = time.monotonic() + _DRY_SECONDS
        time.sleep(_STEP_SECONDS)
        while self._done == self._seen and time.monotonic() < deadline:
            if self._ended.done():
                self._ended.result()  # raises what ended it
                raise RuntimeError("the worker has stopped by itself")
            time.sleep(_STEP_SECONDS)
        seen, self._seen = self._seen, self._done
        return self._seen - seen

    def close(self) -> None:
        """Stop the worker and wait for its end."""
        if self._worker is not None and not self._ended.done():
            self._loop.call_soon_threadsafe(self._worker.stop)
        self._thread.shutdown()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._work())

    async def _work(self) -> None:
        spare_collector()  # as the process of a worker does
        self._worker = self._make(self._count)
        await self._worker.run()

    def _count(self) -> None:
        self._done += 1
