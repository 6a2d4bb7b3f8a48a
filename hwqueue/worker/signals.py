"""How far a stop has gone, and the signals that ask for one."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from hwqueue.stopping import waited

_log = logging.getLogger("hwqueue.worker")

SUPERSEDED = 5
"""Exit code of a worker whose node another worker or login has taken over."""

DRAIN, NOW = b"d", b"n"
"""What a supervisor writes to the standard input of a worker: stop gracefully, or now."""


class Shutdown:
    """The stages of a stop: running, draining (no new claims), now.

    Attributes:
        draining: Set from the first request on.
        now: Set when nothing is waited for any more.
        exit_code: What the process should end with: 0, 1 after a stop that was not graceful, or
            `SUPERSEDED`.
        superseded: Whether another worker has taken over the node.
    """

    def __init__(self) -> None:
        self.draining = asyncio.Event()
        self.now = asyncio.Event()
        self.exit_code = 0
        self.superseded = False

    def request(self) -> None:
        """Ask for a graceful stop; a second time, for a stop now."""
        if not self.draining.is_set():
            _log.info("stopping: no new claims, waiting for running handlers; again to stop now")
            self.draining.set()
        else:
            self.abort("stopping now")

    def drain(self) -> None:
        """Ask for a graceful stop; asked again, nothing changes."""
        if not self.draining.is_set():
            self.request()

    def abort(self, why: str, *, superseded: bool = False) -> None:
        """Stop now, with exit code 1, or `SUPERSEDED`."""
        if not self.now.is_set():
            _log.error("%s", why)
        self.superseded = self.superseded or superseded
        self.exit_code = SUPERSEDED if self.superseded else 1
        self.finish()

    def finish(self) -> None:
        """Stop now; the exit code stays as it is."""
        self.draining.set()
        self.now.set()

    async def sleep(self, seconds: float) -> None:
        """Sleep, but not beyond `now`."""
        await waited(self.now, seconds)

    @contextmanager
    def on_orders(self, descriptor: int) -> Iterator[None]:
        """Follow the orders of a supervisor, and drain when it is gone, while the block runs."""
        loop = asyncio.get_running_loop()

        def follow() -> None:
            orders = os.read(descriptor, 64)
            if not orders:
                loop.remove_reader(descriptor)
            if NOW in orders:
                self.abort("stopping now")
            else:
                self.drain()

        loop.add_reader(descriptor, follow)
        try:
            yield
        finally:
            loop.remove_reader(descriptor)
