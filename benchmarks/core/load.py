"""Drives sessions as fast as they go: each on a connection and in a process of its own.

A process each, because threads of one Python would wait for each other and not for the server.
Sides that are compared take turns (A B A B ...): `take_turns`.
"""

import multiprocessing
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing.synchronize import Barrier
from threading import BrokenBarrierError
from typing import Protocol

from benchmarks.core.spread import percentile

# Forked from a process that has imported what sessions need, but has no connections.
_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["psycopg", "benchmarks.core.load"])

_OPENING_SECONDS = 120
# Set in each process by `_inherit`: a barrier can only be inherited, not sent.
_start: Barrier | None = None


class Session(Protocol):
    """One connection that works. Opened and used in the process that drives it."""

    def step(self) -> int:
        """Do one unit of work; returns how many leases it did, 0 when nothing is left."""

    def close(self) -> None:
        """Give the connection back."""


Opener = Callable[[int], Session]
"""Opens the session of connection 0, 1, ...; a frozen dataclass, since it is sent to a process."""


@dataclass(frozen=True)
class Load:
    """What all connections did together after the warm-up.

    Attributes:
        seconds: How long the one that had work for longest worked.
        done: Leases.
        per_second: Leases; all that were done over `seconds`.
        p50_ms: Of a step.
        p99_ms: Of a step.
        cpu_us: Processor time of the connections' processes for a lease; None: not known.
    """

    seconds: float
    done: int
    per_second: float
    p50_ms: float
    p99_ms: float
    cpu_us: float | None = None


@dataclass(frozen=True)
class _Run:
    """What one connection did; `latencies` are its steps in seconds, `cpu` its process' time."""

    seconds: float
    cpu: float
    done: int
    latencies: "array[float]"


class RanDryError(Exception):
    """Nothing was left before the clock even started: the sizes do not fit."""


def drive(opener: Opener, connections: int, seconds: float, warmup: float | None = None) -> Load:
    """Open `connections` sessions, start them together, let them step for `seconds`.

    A session that runs dry ends early and counts for the time that it had work.

    Args:
        warmup: Seconds of work before the clock starts; None: one, or as short as `seconds`.

    Raises:
        RanDryError: A session found nothing to do in the warm-up or right after it.
        Exception: What a session raised.
    """
    if warmup is None:
        warmup = min(1.0, seconds)
    barrier = _CONTEXT.Barrier(connections)
    with ProcessPoolExecutor(
        connections, mp_context=_CONTEXT, initializer=_inherit, initargs=(barrier,)
    ) as pool:
        # Each waits at the barrier for all others, so no process gets two of them.
        waiting = [pool.submit(_run, opener, number, seconds, warmup) for number in range(connections)]
        runs = _results(waiting)
    latencies = [latency for run in runs for latency in run.latencies]
    longest = max(run.seconds for run in runs)
    done = sum(run.done for run in runs)
    return Load(
        seconds=longest,
        done=done,
        per_second=done / longest,
        p50_ms=1000 * percentile(latencies, 50),
        p99_ms=1000 * percentile(latencies, 99),
        cpu_us=1e6 * sum(run.cpu for run in runs) / done,
    )


def take_turns(
    sides: Mapping[str, Callable[[], Load]], rounds: int, tell: Callable[[str], None] = print
) -> dict[str, list[Load]]:
    """Let every side work once in each round, in turn; the loads of each, round by round."""
    loads: dict[str, list[Load]] = {name: [] for name in sides}
    for number in range(1, rounds + 1):
        for name, work in sides.items():
            load = work()
            loads[name].append(load)
            tell(f"round {number}/{rounds}: {name}: {load.per_second:,.0f}/s")
    return loads


def _results(waiting: Sequence[Future[_Run]]) -> list[_Run]:
    """What all did; of several errors the first that is not only its echo at the barrier."""
    errors = [error for run in waiting if (error := run.exception())]
    errors.sort(key=lambda error: isinstance(error, BrokenBarrierError))
    if errors:
        raise errors[0]
    return [run.result() for run in waiting]


def _inherit(barrier: Barrier) -> None:
    global _start  # noqa: PLW0603
    _start = barrier


def _run(opener: Opener, number: int, seconds: float, warmup: float) -> _Run:
    assert _start is not None
    try:
        session = opener(number)
    except BaseException:
        _start.abort()  # or the others would wait for it
        raise
    try:
        _start.wait(_OPENING_SECONDS)
        _work(session, warmup)
        run = _work(session, seconds)
    finally:
        session.close()
    if run.done == 0:
        raise RanDryError("nothing to do for a session: the backlog is too small for this run")
    return run


def _work(session: Session, seconds: float) -> _Run:
    latencies: array[float] = array("d")
    done = 0
    cpu = time.process_time()
    started = now = time.perf_counter()
    while now - started < seconds:
        did = session.step()
        if did == 0:
            break  # the time that it took to find nothing does not count
        before, now = now, time.perf_counter()
        done += did
        latencies.append(now - before)
    return _Run(now - started, time.process_time() - cpu, done, latencies)
