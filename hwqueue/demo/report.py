"""What a run found, as data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from hwqueue.demo.ledger import Ledger
from hwqueue.demo.model import WHOLE_GPU, Job, Plan, Trace

TIMELINE_POINTS = 400


@dataclass(frozen=True, slots=True)
class ModelShare:
    """GPUs of one model, and how many of them are given away; shares count as parts."""

    model: str
    gpus: int
    allocated: float
    percent: float


@dataclass(frozen=True, slots=True)
class KindCount:
    """Leases of one kind; `running` is at the end, `pending` never ran."""

    kind: str
    spawned: int
    granted: int
    running: int
    pending: int


@dataclass(frozen=True, slots=True)
class PendingReason:
    """Leases that stay pending for one reason; `example` is what the most numerous of them ask for.

    `permanent` says that no registered node could ever run them, however idle.
    """

    code: str
    permanent: bool
    leases: int
    example: str
    message: str


@dataclass(frozen=True, slots=True)
class Timing:
    """Leases handed out, and how long calls took as the caller saw it.

    `claims` counts leases, however many a call brought. `claims_per_second` is None for a timed
    run, where the recording sets the pace. Calls that only claim are in `claim_*` if they brought
    a lease, else in `empty_*`; those that also settle, with or without a new lease, in `settle_*`.
    """

    seconds: float
    claims: int
    claims_per_second: float | None
    claim_calls: int
    claim_p50_ms: float
    claim_p99_ms: float
    empty_calls: int
    empty_p50_ms: float
    empty_p99_ms: float
    settle_calls: int
    settle_p50_ms: float
    settle_p99_ms: float


@dataclass(frozen=True, slots=True)
class TimedFigures:
    """What only a timed run has. Waits are in seconds of the trace, from arrival to claim."""

    speedup: float
    peak_gpu_percent: float
    mean_gpu_percent: float
    wait_p50_s: float
    wait_p99_s: float
    outcomes: Mapping[str, int]
    never_scheduled_but_ran: int


@dataclass(frozen=True, slots=True)
class Check:
    """Outcome of the independent check: grants looked at and the rules that were broken."""

    grants: int
    violations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Report:
    """One run. `timeline`: (seconds since the start, GPUs allocated in percent).

    `gpus_bound_percent`: no assignment allocates more; None: not asked for. `planner`: how long the
    rounds of a live planner took; None: there was none.
    """

    mode: str
    seed: int
    demand_percent: float
    machines: int
    gpus: int
    leases: int
    connections: int
    spawn_seconds: float
    timing: Timing
    gpus_allocated: float
    gpus_allocated_percent: float
    models: tuple[ModelShare, ...]
    kinds: tuple[KindCount, ...]
    pending: tuple[PendingReason, ...]
    check: Check
    timeline: tuple[tuple[float, float], ...]
    timed: TimedFigures | None = None
    gpus_bound_percent: float | None = None
    planner: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the report as plain JSON values."""
        return asdict(self)


def build(
    trace: Trace,
    ledger: Ledger,
    *,
    mode: str,
    plan: Plan,
    seconds: float,
    spawn_seconds: float,
    pending: tuple[PendingReason, ...],
    checked: Check,
    arrival: Callable[[Job], float] | None,
) -> Report:
    """Put a run's figures together; `arrival` returns a job's arrival and makes it a timed run."""
    line = timeline(ledger, trace.gpus)
    used = ledger.gpu_milli_used - ledger.used_by_model["cpu"]
    return Report(
        mode=mode,
        seed=plan.seed,
        demand_percent=percent(sum(job.gpu_demand for job in ledger.jobs.values()), trace.gpus * WHOLE_GPU),
        machines=len(trace.machines),
        gpus=trace.gpus,
        leases=len(ledger.jobs),
        connections=plan.connections,
        spawn_seconds=spawn_seconds,
        timing=timing(ledger, seconds, paced=arrival is not None),
        gpus_allocated=used / WHOLE_GPU,
        gpus_allocated_percent=percent(used, trace.gpus * WHOLE_GPU),
        models=model_shares(trace, ledger.used_by_model),
        kinds=kind_counts(ledger),
        pending=pending,
        check=checked,
        timeline=(*line[:: -(-len(line) // TIMELINE_POINTS)], line[-1]),
        timed=_timed_figures(ledger, line, plan.speedup, arrival) if arrival else None,
    )


def timeline(ledger: Ledger, gpus: int) -> list[tuple[float, float]]:
    """Return the allocated share after every grant and settlement."""
    used = 0
    line = [(0.0, 0.0)]
    for entry in ledger.entries:
        demand = ledger.jobs[entry.grant.lease_id].gpu_demand
        used += demand if entry.outcome is None else -demand
        line.append((entry.at, percent(used, gpus * WHOLE_GPU)))
    return line


def timing(ledger: Ledger, seconds: float, *, paced: bool) -> Timing:
    """Sum up the calls of a run that took `seconds`; `paced` says that a recording set the pace."""
    return Timing(
        seconds=seconds,
        claims=ledger.grants,
        claims_per_second=None if paced or not seconds else ledger.grants / seconds,
        claim_calls=len(ledger.grant_ms),
        claim_p50_ms=percentile(ledger.grant_ms, 50),
        claim_p99_ms=percentile(ledger.grant_ms, 99),
        empty_calls=len(ledger.empty_ms),
        empty_p50_ms=percentile(ledger.empty_ms, 50),
        empty_p99_ms=percentile(ledger.empty_ms, 99),
        settle_calls=len(ledger.settle_ms),
        settle_p50_ms=percentile(ledger.settle_ms, 50),
        settle_p99_ms=percentile(ledger.settle_ms, 99),
    )


def model_shares(trace: Trace, used_by_model: Mapping[str, int]) -> tuple[ModelShare, ...]:
    """Work out the allocated share per GPU model, most GPUs first."""
    gpus: Counter[str] = Counter()
    for machine in trace.machines:
        if machine.gpu_model is not None:
            gpus[machine.gpu_model] += machine.gpus
    return tuple(
        ModelShare(model, count, used := used_by_model.get(model, 0) / WHOLE_GPU, percent(used, count))
        for model, count in gpus.most_common()
    )


def kind_counts(ledger: Ledger) -> tuple[KindCount, ...]:
    """Count leases by kind."""
    spawned = _by_kind(ledger.jobs.values())
    running = _by_kind(ledger.jobs[lease_id] for lease_id in ledger.running)
    granted = _by_kind(
        ledger.jobs[lease_id]
        for lease_id in {entry.grant.lease_id for entry in ledger.entries if not entry.outcome}
    )
    pending = _by_kind(ledger.waiting.values())
    order = sorted(spawned, key=lambda kind: (kind != "cpu", kind != "share", len(kind), kind))
    return tuple(
        KindCount(kind, spawned[kind], granted[kind], running[kind], pending[kind]) for kind in order
    )


def percentile(values: Sequence[float], p: int) -> float:
    """Return the p-th percentile by nearest rank; 0.0 for no values."""
    if not values:
        return 0.0
    return sorted(values)[max(0, -(-len(values) * p // 100) - 1)]


def percent(part: float, whole: float) -> float:
    """Return part of whole in percent; 0.0 of nothing."""
    return 100 * part / whole if whole else 0.0


def _timed_figures(
    ledger: Ledger, line: Sequence[tuple[float, float]], speedup: float, arrival: Callable[[Job], float]
) -> TimedFigures:
    waits = [
        max(0.0, entry.at - arrival(ledger.jobs[entry.grant.lease_id])) * speedup
        for entry in ledger.entries
        if entry.outcome is None
    ]
    area = sum(level * (later - at) for (at, level), (later, _) in pairwise(line))
    ran = {entry.grant.lease_id for entry in ledger.entries}
    return TimedFigures(
        speedup=speedup,
        peak_gpu_percent=max(level for _, level in line),
        mean_gpu_percent=area / line[-1][0] if line[-1][0] else 0.0,
        wait_p50_s=percentile(waits, 50),
        wait_p99_s=percentile(waits, 99),
        outcomes=dict(ledger.outcomes) | {"deadline_exceeded": len(ledger.lapsed)},
        never_scheduled_but_ran=sum(ledger.jobs[lease].scheduled_at is None for lease in ran),
    )


def _by_kind(jobs: Any) -> Counter[str]:
    return Counter(job.kind for job in jobs)
