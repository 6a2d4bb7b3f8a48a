"""Figures of rates: leases a second, with the latency of a step beside them."""

from collections.abc import Sequence

from benchmarks.core.load import Load
from benchmarks.core.report import Aim, Figure
from benchmarks.core.spread import Spread

UNIT = "leases/s"


def rate_against(
    case: str,
    loads: Sequence[Load],
    bases: Sequence[Load],
    aim: Aim | None = None,
    *,
    timed: bool = True,
) -> Figure:
    """Compare the rates of two sides that took turns.

    Beside it stands the latency of a step if `timed`, else the processor time for a lease.
    """
    more = _latencies(loads) if timed else _cpu(loads)
    return Figure.against(case, UNIT, values=_rates(loads), bases=_rates(bases), aim=aim, more=more)


def rate(case: str, loads: Sequence[Load], *, timed: bool = True) -> Figure:
    """A rate that is compared with nothing; `timed` as for `rate_against`."""
    more = _latencies(loads) if timed else _cpu(loads)
    return Figure(case, UNIT, Spread.of(_rates(loads)), more=more)


def _rates(loads: Sequence[Load]) -> list[float]:
    return [load.per_second for load in loads]


def _latencies(loads: Sequence[Load]) -> dict[str, Spread]:
    return {
        "p50 ms": Spread.of([load.p50_ms for load in loads]),
        "p99 ms": Spread.of([load.p99_ms for load in loads]),
    }


def _cpu(loads: Sequence[Load]) -> dict[str, Spread]:
    known = [load.cpu_us for load in loads if load.cpu_us is not None]
    return {"cpu us": Spread.of(known)} if known else {}
