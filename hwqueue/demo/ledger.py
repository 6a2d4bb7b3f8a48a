"""The running account of a replay: what was spawned, granted and settled, in order."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from hwqueue.demo.model import Job, Machine
from hwqueue.types import Assignment

RECENT_GRANTS = 5


@dataclass(frozen=True, slots=True)
class Grant:
    """A lease handed to a machine, as `claim_task` reported it."""

    lease_id: UUID
    claim_token: int
    machine: str
    job: str
    score: float
    assignment: Assignment | None


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the account. Entries of one machine are in the order in which they happened.

    `at` is seconds since the run began, `outcome` None for a grant.
    """

    at: float
    grant: Grant
    outcome: str | None = None


@dataclass(slots=True)
class Ledger:
    """Counts and entries of one run, safe to read while it goes on."""

    machines: Mapping[str, Machine]
    waiting: dict[UUID, Job] = field(default_factory=dict)
    lapsed: dict[UUID, Job] = field(default_factory=dict)
    running: dict[UUID, Grant] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    used_by_model: Counter[str] = field(default_factory=Counter)
    recent: deque[Grant] = field(default_factory=lambda: deque(maxlen=RECENT_GRANTS))
    jobs: dict[UUID, Job] = field(default_factory=dict)
    grant_ms: list[float] = field(default_factory=list)
    empty_ms: list[float] = field(default_factory=list)
    settle_ms: list[float] = field(default_factory=list)

    @property
    def grants(self) -> int:
        """Leases handed out so far."""
        return sum(entry.outcome is None for entry in self.entries)

    @property
    def gpu_milli_used(self) -> int:
        """Thousandths of GPUs that running leases hold."""
        return self.used_by_model.total()

    def spawned(self, lease_id: UUID, job: Job) -> None:
        """Note a lease that now waits, unless another connection has claimed it already."""
        if lease_id not in self.jobs:
            self.jobs[lease_id] = self.waiting[lease_id] = job

    def polled(self, milliseconds: float, granted: int) -> None:
        """Note one call that only claimed, and how many leases it brought."""
        (self.grant_ms if granted else self.empty_ms).append(milliseconds)

    def settled_in(self, milliseconds: float) -> None:
        """Note one call that settled leases and claimed."""
        self.settle_ms.append(milliseconds)

    def granted(self, grant: Grant, job: Job, at: float) -> None:
        """Note a lease that began to run."""
        self.jobs[grant.lease_id] = job
        self.waiting.pop(grant.lease_id, None)
        self.lapsed.pop(grant.lease_id, None)  # granted just before its deadline, by another clock
        self.running[grant.lease_id] = grant
        self.recent.append(grant)
        self.entries.append(Entry(at, grant))
        self.used_by_model[self._model(grant)] += job.gpu_demand

    def settled(self, grant: Grant, outcome: str, at: float) -> None:
        """Note a lease that ended; `outcome` is its state now."""
        del self.running[grant.lease_id]
        self.outcomes[outcome] += 1
        self.entries.append(Entry(at, grant, outcome))
        self.used_by_model[self._model(grant)] -= self.jobs[grant.lease_id].gpu_demand

    def deadline_passed(self, lease_id: UUID) -> None:
        """Note that a lease is not to be claimed any more if it still waits."""
        if (job := self.waiting.pop(lease_id, None)) is not None:
            self.lapsed[lease_id] = job

    def _model(self, grant: Grant) -> str:
        return self.machines[grant.machine].gpu_model or "cpu"
