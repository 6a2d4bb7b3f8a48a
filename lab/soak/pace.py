"""Drives a queue at a given rate, a process for each connection, and probes it meanwhile.

A connection spawns, claims and completes in one loop. It keeps to a schedule that is fixed from the
start: it sleeps when it is early, and never when it is late. What cannot keep up falls behind, in
spawns as in claims, so the backlog stays as it is.
"""

import multiprocessing
import time
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.synchronize import Barrier
from threading import BrokenBarrierError
from typing import TypeVar

import psycopg

from lab.peers.peer import Jobs, SqlPeer
from lab.soak.bystander import Bystander

# Spawning is not what is asked here: one call for so many jobs.
SPAWN_BATCH = 20
PROBE_SECONDS = 0.1
LOOKUP_SECONDS = 0.01
_WARMUP_JOBS = 10
_OPENING_SECONDS = 120

_CONTEXT = multiprocessing.get_context("forkserver")
# Set in each process by `_inherit`: a barrier can only be inherited, not sent.
_start: Barrier | None = None

_T = TypeVar("_T")


@dataclass(frozen=True)
class Pace:
    """What is offered.

    Attributes:
        per_second: Jobs, by all connections together.
        connections: They spawn, claim and complete.
        seconds: How long.
    """

    per_second: float
    connections: int
    seconds: float


@dataclass(frozen=True)
class Claims:
    """Claims of one or more connections.

    Attributes:
        at: When each ended, in seconds after the start.
        ms: How long each took, commit included.
        behind: How many seconds after its moment on the schedule each ended.
    """

    at: "array[float]" = field(default_factory=lambda: array("d"))
    ms: "array[float]" = field(default_factory=lambda: array("d"))
    behind: "array[float]" = field(default_factory=lambda: array("d"))

    def add(self, at: float, ms: float, behind: float) -> None:
        """One more claim."""
        self.at.append(at)
        self.ms.append(ms)
        self.behind.append(behind)


@dataclass(frozen=True)
class Phase:
    """What a queue did at a pace.

    Attributes:
        claims: Those of jobs that were then completed.
        probes: Claims in transactions that were rolled back, ten a second.
        lookups: Rows of a table that has nothing to do with the queue, a hundred a second.
    """

    claims: Claims
    probes: Claims
    lookups: Claims


def keep_pace(
    queue: SqlPeer, dsn: str, pace: Pace, every: float, sample: Callable[[], _T]
) -> tuple[Phase, list[_T]]:
    """Offer work; meanwhile take a sample every so many seconds.

    Raises: Exception of any connection.
    """
    barrier = _CONTEXT.Barrier(pace.connections + 3)
    with ProcessPoolExecutor(
        pace.connections + 2, mp_context=_CONTEXT, initializer=_inherit, initargs=(barrier,)
    ) as pool:
        working = [pool.submit(_work, queue, dsn, pace, n) for n in range(pace.connections)]
        probing = pool.submit(_probe, queue, dsn, pace)
        looking = pool.submit(_look_up, dsn, pace)
        try:
            barrier.wait(_OPENING_SECONDS)
        except BrokenBarrierError:
            raise _cause([*working, probing, looking]) from None
        samples = _samples(every, pace.seconds, sample)
        claims = [work.result() for work in working]
        phase = Phase(_together(claims), probing.result(), looking.result())
    return phase, samples


def _samples(every: float, seconds: float, sample: Callable[[], _T]) -> list[_T]:
    started = time.monotonic()
    samples = []
    for number in range(1, round(seconds / every) + 1):
        _sleep_until(started + number * every)
        samples.append(sample())
    return samples


def _cause(futures: Sequence[Future[Claims]]) -> BaseException:
    """Of several errors the first that is not only its echo at the barrier."""
    errors = [error for future in futures if (error := future.exception())]
    return min(errors, key=lambda error: isinstance(error, BrokenBarrierError))


def _inherit(barrier: Barrier) -> None:
    global _start  # noqa: PLW0603
    _start = barrier


def _open(queue: SqlPeer, dsn: str, number: int) -> Jobs:
    """Open a connection, warm it up, wait for the others."""
    assert _start is not None
    try:
        jobs = queue.connect(dsn, number)
        jobs.spawn(_WARMUP_JOBS)
        for _ in range(_WARMUP_JOBS):
            jobs.complete(jobs.claim(1))
    except BaseException:
        _start.abort()  # or the others would wait for it
        raise
    _start.wait(_OPENING_SECONDS)
    return jobs


def _work(queue: SqlPeer, dsn: str, pace: Pace, number: int) -> Claims:
    jobs = _open(queue, dsn, number)
    claims = Claims()
    interval = pace.connections / pace.per_second
    started = time.monotonic()
    # One connection after the other, or all would spawn at the same moment.
    offset = number / pace.connections
    turn = 0
    while max((turn + offset) * interval, time.monotonic() - started) < pace.seconds:
        due = (turn + offset) * interval
        _sleep_until(started + due)
        if turn % SPAWN_BATCH == 0:
            jobs.spawn(SPAWN_BATCH)
        before = time.monotonic()
        claimed = jobs.claim(1)
        after = time.monotonic()
        if claimed:
            jobs.complete(claimed)
            ended = after - started
            claims.add(ended, 1000 * (after - before), ended - due)
        turn += 1
    jobs.close()
    return claims


def _probe(queue: SqlPeer, dsn: str, pace: Pace) -> Claims:
    jobs = _open(queue, dsn, pace.connections)
    probes = _regularly(PROBE_SECONDS, pace, lambda: _claim_and_roll_back(jobs))
    jobs.close()
    return probes


def _look_up(dsn: str, pace: Pace) -> Claims:
    assert _start is not None
    with psycopg.connect(dsn, autocommit=True) as connection:

        def look_up() -> float:
            before = time.monotonic()
            bystander.look_up()
            return 1000 * (time.monotonic() - before)

        try:
            bystander = Bystander(connection)
            look_up()
        except BaseException:
            _start.abort()
            raise
        _start.wait(_OPENING_SECONDS)
        return _regularly(LOOKUP_SECONDS, pace, look_up)


def _regularly(every: float, pace: Pace, measure: Callable[[], float]) -> Claims:
    """What a measure gives at regular moments."""
    found = Claims()
    started = now = time.monotonic()
    while now < started + pace.seconds:
        ms = measure()
        found.add(time.monotonic() - started, ms, 0)
        # The next of the regular moments; those that were missed are left out.
        passed = time.monotonic() - started
        _sleep_until(started + (passed // every + 1) * every)
        now = time.monotonic()
    return found


def _claim_and_roll_back(jobs: Jobs) -> float:
    """The milliseconds of a claim that then never was."""
    with jobs.connection.transaction(force_rollback=True):
        before = time.monotonic()
        jobs.claim(1)
        return 1000 * (time.monotonic() - before)


def _sleep_until(moment: float) -> None:
    time.sleep(max(0, moment - time.monotonic()))


def _together(parts: list[Claims]) -> Claims:
    together = Claims()
    for part in parts:
        together.at.extend(part.at)
        together.ms.extend(part.ms)
        together.behind.extend(part.behind)
    return together
