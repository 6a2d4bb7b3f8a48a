"""A live planner beside a replay: the process that deployments run."""

from __future__ import annotations

import os
import re
import signal
import statistics
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

_ROUND = re.compile(r"read ([0-9.]+) s, solved ([0-9.]+) s;.* prices: (.*)$")
_FIRST_SECONDS = 120.0  # until there are prices
_STOP_SECONDS = 30.0


@dataclass
class LivePlanner:
    """What the process has said so far."""

    process: subprocess.Popen[str]
    queue: str
    reads: list[float] = field(default_factory=list)
    solves: list[float] = field(default_factory=list)
    _has_prices: threading.Event = field(default_factory=threading.Event)
    _last: str = ""

    def follow(self) -> None:
        """Read its log until it ends."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self._last = line.strip()
            if found := _ROUND.search(line):
                self.reads.append(float(found[1]))
                self.solves.append(float(found[2]))
                if f"{self.queue} set" in found[3]:
                    self._has_prices.set()
        self._has_prices.set()  # nobody need wait any more

    def wait_for_prices(self) -> None:
        """Return once it has set prices. Raises: RuntimeError, if it does not."""
        if not self._has_prices.wait(_FIRST_SECONDS) or self.process.poll() is not None:
            raise RuntimeError(f"the planner has set no prices; it said last: {self._last}")

    def summary(self) -> str:
        """How long its rounds took."""
        if not self.solves:
            return "no round"
        return (
            f"{len(self.solves)} rounds; read p50 {statistics.median(self.reads):.3f} s; solved p50"
            f" {statistics.median(self.solves):.3f} s, worst {max(self.solves):.3f} s"
        )


@contextmanager
def live_planner(dsn: str, queue: str) -> Iterator[LivePlanner]:
    """Let `hwqueue planner` run while the block does, which SIGTERM ends as an exit does."""
    with _exit_on_sigterm(), _planner(dsn, queue) as planner:
        yield planner


@contextmanager
def _exit_on_sigterm() -> Iterator[None]:
    """Let SIGTERM raise SystemExit in the block, so that what it has begun is undone.

    In the main thread alone: others get no signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda number, _frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _planner(dsn: str, queue: str) -> Iterator[LivePlanner]:
    process = subprocess.Popen(
        [sys.executable, "-m", "hwqueue", "planner"],
        env={**os.environ, "HWQUEUE_DSN": dsn},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    planner = LivePlanner(process, queue)
    reader = threading.Thread(target=planner.follow)
    reader.start()
    try:
        yield planner
    finally:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        finally:
            process.kill()
            reader.join()
            assert process.stderr is not None
            process.stderr.close()
