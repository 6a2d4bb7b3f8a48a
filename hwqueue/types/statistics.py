"""What is measured: samples for monitoring, and what ended in each minute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One value of a metric; docs/reference/metrics.md lists the names."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Minute:
    """What ended in a minute.

    Attributes:
        minute: When it began.
        claims: Claims that ended, whatever became of them.
        completed, failed, cancelled: Leases that are so now.
        retried: Claims that did not complete and whose lease went back.
        expired: Claims that nobody heartbeat.
        wait_p50, wait_p95: Seconds from claimable to claimed that half (95 of 100) of the completed
            leases did not exceed; None: none completed. Likewise run, from claimed to completed.
    """

    minute: datetime
    claims: int
    completed: int
    failed: int
    cancelled: int
    retried: int
    expired: int
    wait_p50: float | None
    wait_p95: float | None
    run_p50: float | None
    run_p95: float | None
