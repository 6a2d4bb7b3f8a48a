"""Runs of one map each: submitted, worked off beside sweeps and a look at who waits for whom."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import psycopg
from psycopg.types.json import Jsonb

from benchmarks.core import flows
from benchmarks.core.load import Load
from benchmarks.core.server import calm_down

PAUSE = 0.05  # between the sweeps of a worker that settles steps
_SAMPLE = 0.005
_SWEEP = "select released from hwqueue.advance_workflows()"
_SUBMIT = "select run_id from hwqueue.submit_workflow(p_workflow => 'map', p_input => %s)"
_LOCK_WAITS = """
    select count(*) from pg_stat_activity
    where datname = current_database() and wait_event_type = 'Lock'
      and wait_event in ('transactionid', 'tuple')
"""
# Maps that are done, with nothing of them spawned after: a sweep has still to find that.
_UNRELEASED = """
    select exists (
      select from hwqueue.arrival a
      join hwqueue.tally t on t.run_id = a.run_id and t.step_no = a.step_no
      where a.kind = 'item' and t.part > 0)
"""
_LONGEST = 10.0  # seconds that a release may take before it counts as lost


@dataclass
class Seen:
    """What was seen of one round.

    Attributes:
        milliseconds: Of each map that ended, until the step after it was spawned.
        lock_waits: Sessions seen to wait for another's transaction, in all samples.
    """

    milliseconds: list[float] = field(default_factory=list)
    lock_waits: int = 0


@contextmanager
def looking(dsn: str, seen: Seen) -> Iterator[None]:
    """Sweep and sample until the block ends and nothing of a map is left to be counted."""
    over = threading.Event()

    def sample() -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            swept = 0.0
            while not over.wait(_SAMPLE):
                [(waits,)] = connection.execute(_LOCK_WAITS, prepare=True).fetchall()
                seen.lock_waits += waits
                if time.monotonic() - swept > PAUSE:
                    sweep(connection)
                    swept = time.monotonic()

    looks = threading.Thread(target=sample)
    looks.start()
    try:
        yield
        _await_releases(dsn)
    finally:
        over.set()
        looks.join()


def submit(connection: psycopg.Connection, items: int, runs: int) -> None:
    """Submit runs of the workflow `map`, and fill the windows of their maps."""
    for _ in range(runs):
        connection.execute(_SUBMIT, [Jsonb(list(range(items)))])
    for _ in range(2):
        sweep(connection)


def sweep(connection: psycopg.Connection) -> int:
    """Do what settlements have left; how much that has released."""
    [(released,)] = connection.execute(_SWEEP, prepare=True).fetchall()
    return int(released)


def mapped(
    dsn: str, items: int, backlog: int, measure: Callable[[], Load], *after: flows.Step
) -> Callable[[], Load]:
    """A turn: submit runs of one map each, fill their windows, measure."""
    define(dsn, *after)

    def turn() -> Load:
        with psycopg.connect(dsn, autocommit=True) as connection:
            submit(connection, items, max(1, backlog // items))
        calm_down(dsn)
        return measure()

    return turn


def define(dsn: str, *after: flows.Step) -> None:
    """Define the workflow `map`: a map over its input, and steps after it."""
    flows.define(dsn, "map", [flows.step("each", kind="map", over={"$input": []}), *after])


def _await_releases(dsn: str) -> None:
    """Wait until sweeps have counted all that settlements have left of maps.

    Raises: TimeoutError when that takes too long.
    """
    deadline = time.monotonic() + _LONGEST
    with psycopg.connect(dsn, autocommit=True) as connection:
        while connection.execute(_UNRELEASED, prepare=True).fetchone() == (True,):
            if time.monotonic() > deadline:
                raise TimeoutError("sweeps do not count what settlements have left")
            time.sleep(PAUSE)
