"""Several worker processes of one machine: started, told to stop, and started again when they end.

Each runs the same command line with an index. It is told to stop through its standard input, and
only so that it is to stop now: a terminal, `timeout` and systemd signal the whole group, so that a
process would take one Ctrl-C for two. When the supervisor is gone its end of the pipe is closed,
and the processes stop, too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from importlib import import_module
from pathlib import Path

from hwqueue.stopping import SIGNALS, calling
from hwqueue.worker.signals import DRAIN, NOW, SUPERSEDED

_log = logging.getLogger("hwqueue.worker")

# Ends that trying again does not change: a wrong command line, a schema that does not fit, a name
# that another worker has.
_FINAL = (2, 4, SUPERSEDED)
# Ends of a process that a signal met before it could stop by itself.
_SIGNALLED = {code for number in SIGNALS for code in (-number, 128 + number)}
_FIRST_WAIT_SECONDS = 1.0
_LONGEST_WAIT_SECONDS = 60.0
_LONG_ENOUGH_SECONDS = 60.0


class Supervisor:
    """Runs one command in several processes until SIGTERM or SIGINT.

    A process that ends by itself is started again: after 1 s, then after twice as long each time,
    at most 60 s. One that ends with code 2, 4 or 5 would again, so the others are stopped as well.

    Args:
        command: The command line of the process with an index, from 0.
        processes: How many.
        watched: Files and folders; when a Python file there changes, all processes are stopped at
            once and started again, and one that has ended by itself waits for that.
    """

    def __init__(
        self, command: Callable[[int], Sequence[str]], processes: int, watched: Collection[Path] = ()
    ) -> None:
        self._command = command
        self._count = processes
        self._watched = watched
        self._running: dict[int, asyncio.subprocess.Process] = {}
        self._changes = [asyncio.Event() for _ in range(processes)]
        self._stopping = asyncio.Event()
        self._codes: list[int] = []

    async def run(self) -> int:
        """Run them, once.

        Returns:
            0 when all have ended gracefully; else the code of the one that ended them all, or 1.

        Raises:
            ModuleNotFoundError: Files are to be watched, and watchfiles is not installed.
        """
        if self._watched:
            import_module("watchfiles")  # before anything is started
        watching = asyncio.ensure_future(self._watch()) if self._watched else None
        try:
            with calling(self.stop):
                await asyncio.gather(*map(self._keep, range(self._count)))
        finally:
            if watching is not None:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
        final = [code for code in self._codes if code in _FINAL]
        return final[0] if final else int(any(self._codes))

    def stop(self) -> None:
        """Stop all gracefully; called again, stop them now."""
        order = NOW if self._stopping.is_set() else DRAIN
        self._stopping.set()
        for process in self._running.values():
            _tell(process, order)

    async def _keep(self, index: int) -> None:
        """Keep one process running until all are stopped."""
        loop, wait = asyncio.get_running_loop(), _FIRST_WAIT_SECONDS
        while not self._stopping.is_set():
            self._changes[index].clear()
            began = loop.time()
            code = await self._run_one(index)
            if self._stopping.is_set():
                self._codes.append(0 if code in _SIGNALLED else code)
            elif self._watched:
                if not self._changes[index].is_set():
                    _log.warning("process %d ended with code %d; waiting for a change", index, code)
                await self._sleep(index, None)
            elif code in _FINAL:
                _log.error("process %d ended with code %d; stopping all", index, code)
                self._codes.append(code)
                self.stop()
            else:
                wait = _FIRST_WAIT_SECONDS if loop.time() - began > _LONG_ENOUGH_SECONDS else wait
                _log.warning("process %d ended with code %d; starting it again in %g s", index, code, wait)
                await self._sleep(index, wait)
                wait = min(2 * wait, _LONGEST_WAIT_SECONDS)

    async def _run_one(self, index: int) -> int:
        process = await asyncio.create_subprocess_exec(*self._command(index), stdin=asyncio.subprocess.PIPE)
        self._running[index] = process
        _log.info("process %d runs as pid %d", index, process.pid)
        if self._stopping.is_set():  # while it was being started
            _tell(process, DRAIN)
        elif self._changes[index].is_set():
            _tell(process, NOW)
        try:
            return await process.wait()
        finally:
            del self._running[index]

    async def _sleep(self, index: int, seconds: float | None) -> None:
        """Sleep until a file changes or all are stopped, at most `seconds`."""
        change = self._changes[index]
        waits = [asyncio.ensure_future(event.wait()) for event in (change, self._stopping)]
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for one in waits:
            one.cancel()

    async def _watch(self) -> None:
        """Start all processes again whenever a Python file changes."""
        from watchfiles import PythonFilter, awatch  # noqa: PLC0415

        async for changes in awatch(*self._watched, watch_filter=PythonFilter()):
            names = sorted(Path(path).name for _, path in changes)
            _log.warning("%s changed; starting again", ", ".join(names[:3]))
            for index, change in enumerate(self._changes):
                change.set()
                if index in self._running:
                    _tell(self._running[index], NOW)


def _tell(process: asyncio.subprocess.Process, order: bytes) -> None:
    """Give an order; one that has ended meanwhile has nobody to hear it."""
    if process.stdin is not None and not process.stdin.is_closing():
        process.stdin.write(order)
