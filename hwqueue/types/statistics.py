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
class FleetSample:
    """How full the fleet was, or how much waited, in a minute or on average in an hour.

    Attributes:
        at: When the minute or hour began.
        name: Of GPUs: the model; empty: of leases that want any. Of what waits: why, empty: all of it.
            `room`: a node would do. `require`, `capacity`, `taints`, `served` and other parts of a
            placement: no live node has that. `limit`, `team`, `place`, `signal`: what it waits for.
        used: GPUs in use. Of all that waits: claims that run.
        present: GPUs of nodes that live. Of all that waits: nodes that live.
        waiting: GPUs that leases ask for that are ready; leases that wait.
    """

    at: datetime
    name: str
    used: float
    present: float
    waiting: float


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
