"""Queues and their policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from hwqueue.types.base import given, members


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """When a failed lease runs again; what is None is the database's default.

    kind: `exponential`, `fixed` or `none`. base: wait before attempt 2. factor: 1..100, growth per
    attempt. max: longest wait. jitter: 0..1, the part of a wait that is random.
    """

    kind: str = "exponential"
    base: timedelta | None = None
    factor: float | None = None
    max: timedelta | None = None
    jitter: float | None = None

    def as_json(self) -> dict[str, Any]:
        """The JSON object that the SQL functions take."""
        return members(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePolicy:
    """How a queue treats its leases; what is None is left as it is, or at its default.

    claim_timeout: a claim without heartbeat ends after it. poll_interval: how often idle workers
    ask. patience: how long a lease waits for a better node, at most; zero: not at all. ageing_step:
    waiting this long is worth one priority; zero: off. max_params_bytes, max_result_bytes: of the
    JSON text. retain_completed: how long completed and cancelled leases are kept; zero: a lease
    that completes is gone at once, and its result with it, but for one with an idempotency key,
    which stays until `prune` takes it, a minute or so. It holds for later claims. retain_failed:
    how long failed ones are kept. failure_domain: what counts as one place for services that say
    nothing: `node`, `rack` or `label:KEY`. earmarks: how many gangs may have room kept for them on
    nodes that they could share; 0: none of this queue. everywhere_tenants: tenants whose callers
    may spawn everywhere tasks; `*`: all. everywhere_limit: how many of these each such tenant may
    have. limits: of all leases that are spawned into it. preempt: how its leases preempt those of
    later tiers, off by default: `after` it waited for so long, `grace` before a victim is to stop,
    `most` victims, `hold` of the room, `enabled`. preemptible: `min_run` that spares a lease from
    being preempted, `max_times` a day. tuning: for experts, a JSON object; what is left out stays.
    """

    claim_timeout: timedelta | None = None
    poll_interval: timedelta | None = None
    patience: timedelta | None = None
    max_attempts: int | None = None
    retry: RetryPolicy | Mapping[str, Any] | None = None
    ageing_step: timedelta | None = None
    max_params_bytes: int | None = None
    max_result_bytes: int | None = None
    retain_completed: timedelta | None = None
    retain_failed: timedelta | None = None
    failure_domain: str | None = None
    earmarks: int | None = None
    everywhere_tenants: Sequence[str] | None = None
    everywhere_limit: int | None = None
    limits: Sequence[str] | None = None
    preempt: Mapping[str, Any] | None = None
    preemptible: Mapping[str, Any] | None = None
    tuning: Mapping[str, Any] | None = None

    def as_json(self) -> dict[str, Any]:
        """The JSON object that the SQL functions take."""
        retry = self.retry.as_json() if isinstance(self.retry, RetryPolicy) else self.retry
        return members(self) | given(retry=retry)


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """A queue, the number of its open leases by state, and its policy (spans in seconds)."""

    queue: str
    paused: bool
    pending: int
    scheduled: int
    claimed: int
    policy: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class WakePayload:
    """The payload that notifications of a queue's new work carry, on channel `hwqueue`."""

    queue: str
    payload: str
