"""Figures of several runs that differ in their seed."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hwqueue.demo.report import Report


@dataclass(frozen=True, slots=True)
class Spread:
    """Median, least and greatest over the seeds."""

    median: float
    low: float
    high: float


def summary(reports: Sequence[Report]) -> dict[str, Spread]:
    """Return median and range over runs that differ in their seed; without what they lack."""
    figures: dict[str, Callable[[Report], float | None]] = {
        "gpus_allocated_percent": lambda report: report.gpus_allocated_percent,
        "gpus_bound_percent": lambda report: report.gpus_bound_percent,
        "claims_per_second": lambda report: report.timing.claims_per_second,
        "claim_p50_ms": lambda report: report.timing.claim_p50_ms,
        "claim_p99_ms": lambda report: report.timing.claim_p99_ms,
    }
    spreads = {}
    for name, figure in figures.items():
        values = [value for report in reports if (value := figure(report)) is not None]
        if values:
            spreads[name] = Spread(statistics.median(values), min(values), max(values))
    return spreads
