"""How long to wait between two looks, how often others may wake one, and how to sleep that long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta

from hwqueue.client._arguments import check_span
from hwqueue.errors import BadArgument

LISTEN_AFTER_SECONDS = 0.5
"""A wait that is over by then only polls: a connection of its own would cost more."""

_FIRST_SECONDS = 0.02
_GROWTH = 1.5
_MOST_SECONDS = 1.0
_MOST_NOTIFIED_SECONDS = 5.0


class Pauses:
    """Pauses that grow, within a timeout.

    Args:
        timeout: None: no limit.

    Raises: BadArgument.
    """

    def __init__(self, timeout: timedelta | None) -> None:
        check_span(timeout, "timeout")
        if timeout is not None and timeout < timedelta(0):
            raise BadArgument(
                f"timeout must be at least 0, got {timeout}",
                detail={"field": "timeout"},
                hint="0 looks once; None waits for ever",
            )
        self._began = time.monotonic()
        self._until = None if timeout is None else self._began + timeout.total_seconds()
        self._next = _FIRST_SECONDS

    @property
    def elapsed(self) -> float:
        """Seconds since the wait began."""
        return time.monotonic() - self._began

    @property
    def is_over(self) -> bool:
        """Whether the timeout has passed."""
        return self._until is not None and time.monotonic() >= self._until

    def next(self, *, notified: bool) -> float:
        """Seconds until the next look.

        Args:
            notified: Whether a notification will end the pause as soon as there is something new.
        """
        pause = min(self._next, _MOST_NOTIFIED_SECONDS if notified else _MOST_SECONDS)
        self._next = pause * _GROWTH
        left = pause if self._until is None else self._until - time.monotonic()
        return max(0.0, min(pause, left))


class Rate:
    """How often something may happen: `burst` times at once, then `per_second`.

    Args:
        clock: Seconds, ever rising.
    """

    def __init__(
        self, burst: int = 20, per_second: float = 20.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        self._burst = burst
        self._per_second = per_second
        self._left = float(burst)
        self._counted_at = clock()

    def take(self) -> float:
        """Seconds after which it may happen once more; the caller waits that long."""
        now = self._clock()
        gained = (now - self._counted_at) * self._per_second
        self._left, self._counted_at = min(self._burst, self._left + gained) - 1, now
        return max(0.0, -self._left / self._per_second)


async def apause(seconds: float) -> None:
    """Sleep in the event loop."""
    await asyncio.sleep(seconds)


def pause(seconds: float) -> None:
    """The twin of `apause` in the sync client."""
    time.sleep(seconds)
