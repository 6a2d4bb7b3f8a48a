"""SIGTERM and SIGINT, from the first line of a program on.

The kernel drops a signal for which the first process of a container has no handler, and Python has
none for SIGTERM. So the command line has handlers before it imports an app: a signal ends it, there
and then. What can stop in a better way takes the signals over with `calling`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

from hwqueue.errors import ConfigError

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stopped(SystemExit):
    """A signal has ended the program before anything took the signals over."""


_told: list[int] = []
"""The codes that signals have told the program to end with."""


async def waited(event: asyncio.Event, seconds: float | None) -> bool:
    """Wait until an event is set, for so long at most (None: for ever); whether it is."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
    return event.is_set()


def end_on_sigterm() -> None:
    """Let SIGTERM end the program with 143, as shells have it, where it would be dropped, too."""
    signal.signal(signal.SIGTERM, _end_with(128 + signal.SIGTERM))


@contextmanager
def handled_by(
    handler: Callable[[int, FrameType | None], object], numbers: Sequence[signal.Signals] = SIGNALS
) -> Iterator[None]:
    """Let a function handle signals while the block runs; what did so before does so again then.

    In threads other than the main one, which are told of no signals, it does nothing.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, former in before.items():
            signal.signal(number, former)


@contextmanager
def until_told() -> Iterator[None]:
    """Around what runs until it is told to stop: either signal ends it, with code 0.

    As `handled_by`, only in the main thread.
    """
    with handled_by(_end_with(0)):
        yield


@contextmanager
def told_first(tell: Callable[[], object]) -> Iterator[None]:
    """Let the signals call this while the block runs, before what handles them anyway.

    As `handled_by`, only in the main thread.
    """
    before = {number: signal.getsignal(number) for number in SIGNALS}

    def hear(number: int, frame: FrameType | None) -> None:
        tell()
        handler = before[signal.Signals(number)]
        if callable(handler):
            handler(number, frame)

    with handled_by(hear):
        yield


@contextmanager
def calling(ask: Callable[[], object]) -> Iterator[None]:
    """Let the signals call this in the running event loop while the block runs.

    Those that come before the first is heard count as one: `timeout` signals a process, then its
    group.
    """
    loop = asyncio.get_running_loop()
    heard: list[asyncio.Handle] = []

    def hear() -> None:
        if not heard:
            heard.append(loop.call_soon(answer))

    def answer() -> None:
        heard.clear()
        ask()

    for number in SIGNALS:
        loop.add_signal_handler(number, hear)
    try:
        yield
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)


@contextmanager
def importing(what: str) -> Iterator[None]:
    """Around the import of code that is not ours, which may end the program, or catch `Stopped`.

    Raises: ConfigError: It ended the program.
    """
    _told.clear()
    try:
        yield
    except (SystemExit, KeyboardInterrupt) as left:
        if not _told:
            raise ConfigError(
                f"{what}: its import ended the program: {_in_words(left)}",
                hint="a module that is imported must come to its end; "
                "put what is to run as a script below if __name__ == '__main__':",
            ) from left
    finally:
        if _told:  # threads that it has started would hold up an orderly end
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(_told[-1])


def _end_with(code: int) -> Callable[[int, FrameType | None], NoReturn]:
    def end(_number: int, _frame: FrameType | None) -> NoReturn:
        _told.append(code)
        raise Stopped(code)

    return end


def _in_words(left: SystemExit | KeyboardInterrupt) -> str:
    """What ended a program, as it is written."""
    if isinstance(left, KeyboardInterrupt):
        return "KeyboardInterrupt"
    return "sys.exit()" if left.code is None else f"sys.exit({left.code!r})"
