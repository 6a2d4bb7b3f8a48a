"""Streams that are open: how many, whose, and that they end when the server stops."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from hwqueue.server.problems import Refusal


class Streams:
    """Counts the open streams of a server process."""

    def __init__(self, most: int, most_of_one: int) -> None:
        self._most = most
        self._most_of_one = most_of_one
        self._open = Counter[str]()
        self.stopping = False

    @contextmanager
    def ended_by_signals(self) -> Iterator[None]:
        """Let every stream end, soon after the server is told to stop: it waits for them.

        The server's own handlers of signals are called after.
        """
        if threading.current_thread() is not threading.main_thread():
            yield  # only the main thread is told of signals
            return

        def stop(number: int, frame: FrameType | None) -> None:
            self.stopping = True
            handler = before[signal.Signals(number)]
            if callable(handler):
                handler(number, frame)

        before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def one(self, who: str) -> Iterator[None]:
        """Room for a stream of somebody's.

        Raises: Refusal, 429 if they have as many as one may have; 503 if there is no room at all.
        """
        if self._open[who] >= self._most_of_one:
            raise Refusal(
                429,
                f"you have {self._open[who]} streams open, and no more may be",
                hint="close one, or follow more with it: it takes several values of code",
                headers={"Retry-After": "10"},
            )
        if self._open.total() >= self._most:
            raise Refusal(
                503,
                f"{self._most} streams are open, and no more may be",
                hint="come back later, or ask GET /api/v1/events?after=... now and then",
                headers={"Retry-After": "10"},
            )
        self._open[who] += 1
        try:
            yield
        finally:
            self._open[who] -= 1
            if not self._open[who]:
                del self._open[who]  # there may be many addresses over time
