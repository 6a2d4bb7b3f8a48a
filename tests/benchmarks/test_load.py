"""The figures of a load are those of the sessions that worked."""

import time
from dataclasses import dataclass

import pytest

from benchmarks.core import pgbench
from benchmarks.core.fill import kind, top_up
from benchmarks.core.floor import create_floor, top_up_floor
from benchmarks.core.load import Load, RanDryError, drive, take_turns
from benchmarks.core.node import register
from benchmarks.core.queue import create_queue
from benchmarks.core.run import Run
from tests.fix_db import strict_skip

pytestmark = pytest.mark.embedded

PAUSE = 0.005


@dataclass(frozen=True)
class Countdown:
    """Opens sessions with so many steps of two leases each, and `last` seconds to see the end."""

    steps: int
    last: float = PAUSE

    def __call__(self, number: int) -> "CountdownSession":
        return CountdownSession(self.steps, self.last)


class CountdownSession:
    """Takes its time for every step."""

    def __init__(self, steps: int, last: float = PAUSE) -> None:
        self._left = steps
        self._last = last

    def step(self) -> int:
        """Two leases, until nothing is left."""
        time.sleep(PAUSE if self._left else self._last)
        self._left -= 1
        return 2 if self._left >= 0 else 0

    def close(self) -> None:
        """Nothing to close."""


@dataclass(frozen=True)
class Refused:
    """Opens no session for connection 1."""

    def __call__(self, number: int) -> CountdownSession:
        if number == 1:
            raise ConnectionRefusedError("no")
        return CountdownSession(1000)


def test_connections_work_side_by_side() -> None:
    load = drive(Countdown(10_000), connections=3, seconds=0.3, warmup=0)
    assert load.seconds >= 0.3
    assert load.done <= 3 * 2 * (load.seconds / PAUSE)
    assert load.per_second > 2000 / load.p50_ms  # more than one of them alone could do
    assert 1000 * PAUSE <= load.p50_ms <= load.p99_ms
    assert load.cpu_us is not None
    assert 0 < load.cpu_us * load.done < 1e6 * 3 * load.seconds  # they sleep most of it


def test_a_session_that_runs_dry_counts_for_the_time_it_had_work() -> None:
    load = drive(Countdown(20), connections=1, seconds=30, warmup=0)
    assert load.done == 40
    assert load.per_second == pytest.approx(load.done / load.seconds)


def test_nothing_to_do_is_an_error_and_that_of_a_session_is_told() -> None:
    with pytest.raises(RanDryError):
        drive(Countdown(0), connections=1, seconds=1)
    with pytest.raises(ConnectionRefusedError):
        drive(Refused(), connections=3, seconds=1)


def test_sides_take_turns() -> None:
    order: list[str] = []

    def side(name: str) -> Load:
        order.append(name)
        return Load(1, len(order), len(order), 1, 1)

    loads = take_turns({"a": lambda: side("a"), "b": lambda: side("b")}, 2, lambda _: None)
    assert order == ["a", "b", "a", "b"]
    assert [load.done for load in loads["b"]] == [2, 4]


@pytest.mark.parametrize("script", ["floor", "claim_then_settle", "settle_and_claim"])
def test_pgbench_drives_its_scripts(run: Run, dsn: str, script: str) -> None:
    if not pgbench.is_there():
        strict_skip("pgbench is not on the PATH")
    create_floor(dsn)
    create_queue(dsn)
    register(dsn)
    register(dsn, 1)
    top_up_floor(dsn, 50_000)
    top_up(run, dsn, kind(), 50_000)
    load = pgbench.drive_script(dsn, script, connections=2, seconds=0.8, warmup=0.2)
    assert load.done > 0
    assert load.per_second == pytest.approx(load.done / load.seconds)
    assert load.p50_ms <= load.p99_ms > 0
