"""Claims: what a node is given, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal
from uuid import UUID

from hwqueue.types.base import Json, LeaseState, Verdict, given


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignedGpu:
    """A device set aside for a claim; `index` is its position in the node's `gpus`."""

    index: int
    resource_id: UUID
    model: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What a claim set aside on its node.

    gpu_milli: thousandths of each device; 1000 for whole ones, 0 without GPUs. custom: amounts of
    the node's own countables. Where cores are counted: cpu_isolation: the class that the lease came
    to; cores: ids; core_milli: thousandths of each; numa: NUMA nodes; cpus: logical CPUs to be
    pinned to; None elsewhere. gpu_exclusivity: the class by which it has its devices alone; None:
    shared.
    """

    cpu_milli: int = 0
    memory_mib: int = 0
    gpus: tuple[AssignedGpu, ...] = ()
    gpu_milli: int = 0
    custom: Mapping[str, int] = field(default_factory=dict)
    cpu_isolation: str | None = None
    cores: tuple[int, ...] | None = None
    core_milli: tuple[int, ...] | None = None
    numa: tuple[int, ...] | None = None
    cpus: tuple[int, ...] | None = None
    gpu_exclusivity: str | None = None

    @property
    def gpu_words(self) -> str:
        """Its devices in a line: `GPU 0 (A100), GPU 3 (A100)`."""
        return ", ".join(f"GPU {gpu.index}" + (f" ({gpu.model})" if gpu.model else "") for gpu in self.gpus)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A lease granted to a node until `expires_at`, unless heartbeated.

    claim_token: the fence; it rises with every grant of the lease. assignment: None when nothing is
    counted for it.
    """

    lease_id: UUID
    claim_token: int
    attempt: int
    queue: str
    task_name: str
    params: Json
    headers: Mapping[str, Any] | None
    score: float
    expires_at: datetime
    assignment: Assignment | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """A lease that died without a handler, which would have told.

    claim_token, attempt: of its last claim; 0: it was never claimed. error: its `reason` is
    claim_expired, node_superseded or deadline_exceeded.
    """

    lease_id: UUID
    claim_token: int
    attempt: int
    queue: str
    task_name: str
    params: Json
    headers: Mapping[str, Any] | None
    died_at: datetime
    error: Mapping[str, Any]

    @property
    def claim(self) -> Claim:
        """Its last claim, for hooks; it ended when the lease died."""
        same = ("lease_id", "claim_token", "attempt", "queue", "task_name", "params", "headers")
        known = {name: getattr(self, name) for name in same}
        return Claim(**known, score=0.0, expires_at=self.died_at, assignment=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settlement:
    """How a claim ended, for `settle_and_claim`.

    Made by `complete`, `fail`, `release` and `suspend`.

    Attributes:
        traceparent: Of a step: W3C trace context of its span, which the steps after it are linked
            to. A completion without it costs much less.
    """

    lease_id: UUID | str
    claim_token: int
    outcome: str
    result: Json = None
    error: Json = None
    retry: bool = True
    retry_at: datetime | timedelta | None = None
    delay: timedelta | None = None
    available_at: datetime | None = None
    signal: str | None = None
    name: str | None = None
    near: Literal["self"] | None = None
    traceparent: str | None = None

    @classmethod
    def complete(cls, lease_id: UUID | str, claim_token: int, *, result: Json = None) -> Settlement:
        """The lease is done; `result` is kept with it."""
        return cls(lease_id=lease_id, claim_token=claim_token, outcome="complete", result=result)

    @classmethod
    def fail(
        cls,
        lease_id: UUID | str,
        claim_token: int,
        *,
        error: Mapping[str, Any],
        retry: bool = True,
        retry_at: datetime | timedelta | None = None,
    ) -> Settlement:
        """The attempt failed; with `retry` False the lease is dead.

        retry_at: When it is tried again, or how long from now by the database's clock; None: as its
        retry policy says.
        """
        return cls(
            lease_id=lease_id,
            claim_token=claim_token,
            outcome="fail",
            error=error,
            retry=retry,
            retry_at=retry_at,
        )

    @classmethod
    def release(
        cls,
        lease_id: UUID | str,
        claim_token: int,
        *,
        delay: timedelta | None = None,
        available_at: datetime | None = None,
    ) -> Settlement:
        """Hand the lease back, no attempt used up.

        It is not claimable before `available_at`, or before `delay` has passed; give one at most.
        """
        return cls(
            lease_id=lease_id,
            claim_token=claim_token,
            outcome="release",
            delay=delay,
            available_at=available_at,
        )

    @classmethod
    def suspend(
        cls,
        lease_id: UUID | str,
        claim_token: int,
        *,
        name: str,
        signal: str | None = None,
        delay: timedelta | None = None,
        near: Literal["self"] | None = None,
    ) -> Settlement:
        """The handler waits: for `delay`, or for `signal`, which `delay` is the timeout of.

        name: of the checkpoint that keeps the wait. near: `self`, its next claim prefers the node
        of this one. See `suspend_lease`.
        """
        return cls(
            lease_id=lease_id,
            claim_token=claim_token,
            outcome="suspend",
            name=name,
            signal=signal,
            delay=delay,
            near=near,
        )

    def as_json(self) -> dict[str, Any]:
        """The JSON object that the SQL functions take, without what the outcome has no use for."""
        common = {
            "lease_id": self.lease_id,
            "claim_token": self.claim_token,
            "outcome": self.outcome,
        } | given(traceparent=self.traceparent)
        if self.outcome == "fail":
            failed = {"error": self.error, "retry": self.retry}
            return common | failed | given(retry_at=self.retry_at)
        if self.outcome == "suspend":
            waits = given(name=self.name, signal=self.signal, delay=self.delay, near=self.near)
            return common | waits
        return common | given(result=self.result, delay=self.delay, available_at=self.available_at)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """What became of one settlement; `state`: of the lease now, None if there is no such lease."""

    ordinal: int
    lease_id: UUID
    verdict: Verdict
    state: LeaseState | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SettledAndClaimed:
    """The answer of `settle_and_claim`: settlements in the order given, claims best first."""

    settled: tuple[Settled, ...]
    claimed: tuple[Claim, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """What a heartbeat found one claim to be; `expires_at` is its new end, None if it is over."""

    lease_id: UUID
    verdict: Verdict
    expires_at: datetime | None
    claim_token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimHint:
    """After an empty claim: when to ask again, and how many classes wait for which reason.

    retry_after: None when nothing is known that time alone would change.
    """

    retry_after: timedelta | None
    reasons: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseOutlook:
    """What may become of a lease that a node runs, or ran last.

    max_attempts: how many there may be; own_max_attempts: as it was spawned, None: the queue's.
    again_in: until it is claimable again; None unless it is scheduled. placement: what it asks.
    """

    lease_id: UUID
    state: LeaseState
    max_attempts: int
    own_max_attempts: int | None
    again_in: timedelta | None
    placement: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Adopted:
    """A lease that records work already running, and the token of its claim."""

    lease_id: UUID
    claim_token: int
