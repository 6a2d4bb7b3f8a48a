"""What a handler is told about the lease it runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Generator
from dataclasses import dataclass, field
from typing import Any

from hwqueue.handler._async.calls import AsyncContextCalls
from hwqueue.handler._sync.calls import ContextCalls
from hwqueue.logs import LogLevel


class Cancelled(BaseException):
    """Raised inside a sync handler that is asked to stop (async ones get `CancelledError`).

    A `BaseException`, so that `except Exception` in a handler does not swallow it.
    """


@dataclass(frozen=True, kw_only=True, eq=False)
class LeaseContext(ContextCalls):
    """For sync handlers, in a thread or a process.

    Attributes:
        cancelled: Set when the handler should stop. Returning normally after that still
            completes the lease; to hand it back, call `raise_if_cancelled`.
    """

    cancelled: threading.Event = field(default_factory=threading.Event)

    def raise_if_cancelled(self) -> None:
        """Raise `hwqueue.Cancelled` when the handler should stop; call it now and then."""
        if self.cancelled.is_set():
            raise Cancelled

    def _pause(self, seconds: float) -> None:
        """Wait, with the slot kept. Raises: Cancelled."""
        if self.cancelled.wait(seconds):
            raise Cancelled


class _Said:
    """What may be awaited, and is done."""

    def __await__(self) -> Generator[None, None, None]:
        yield from ()


@dataclass(frozen=True, kw_only=True, eq=False)
class AsyncLeaseContext(AsyncContextCalls):
    """For async handlers.

    Attributes:
        cancelled: Set just before `CancelledError` is raised in the handler.
    """

    cancelled: asyncio.Event = field(default_factory=asyncio.Event)

    def progress(  # type: ignore[override]  # awaited or not, as people write it
        self, done: float, message: str = "", *, total: float | None = None
    ) -> Awaitable[None]:
        """See `LeaseContext.progress`. It is said at once; to await it waits for nothing."""
        super().progress(done, message, total=total)
        return _Said()

    def log(  # type: ignore[override]
        self, message: object, level: LogLevel = "info", **fields: Any
    ) -> Awaitable[None]:
        """See `LeaseContext.log`. It is said at once; to await it waits for nothing."""
        super().log(message, level, **fields)
        return _Said()

    async def _pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
