"""What operators look at: why work is pending, what is full, what happened to a lease."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from hwqueue.types.leases import Progress


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingReason:
    """Why the leases of one placement class are pending.

    words: what the class asks. resources: the amounts among that. code: a reason code; None: only
    its turn. permanent: waiting does not help. words and message are None after the first 500 rows.
    nodes_matching: live, uncordoned nodes that could ever run it; None: too many different nodes to
    tell, ask for the class alone; or its leases wait for a limit, and no node is judged.
    nodes_free: those with room now and no known conflict. nodes_near: where none matches, the live
    nodes that one thing keeps out, the one that `message` names.
    """

    class_id: int
    queue: str
    tenant: str
    service_id: UUID | None
    task_name: str
    words: str | None
    resources: Mapping[str, int]
    pending: int
    oldest_at: datetime
    code: str | None
    permanent: bool
    message: str | None
    nodes_matching: int | None
    nodes_free: int
    nodes_near: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningLease:
    """A lease that runs, and what its handler reported last; progress: None: nothing.

    attempt: which one runs. stop_reason: why it was asked to stop. node_name: None: the node is
    gone.
    """

    lease_id: UUID
    queue: str
    task_name: str
    tenant: str
    attempt: int
    node_name: str | None
    claimed_at: datetime
    expires_at: datetime | None
    stop_reason: str | None
    progress: Progress | None


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueDepth:
    """What waits and runs in a queue.

    stopping: running leases that were asked to stop. expired: claims that nobody extended, for
    `reap` to end. oldest_at: since when the oldest ready lease has been claimable. next_at: when
    the next scheduled one becomes so.
    """

    queue: str
    pending: int
    scheduled: int
    running: int
    stopping: int
    expired: int
    oldest_at: datetime | None
    next_at: datetime | None
    paused_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUsage:
    """What a node has and what of it is in use; a total of None is not counted.

    state: `live`, `silent`, `cordoned` or `draining`. gpu_milli_used: thousandths of devices.
    gpus_free, cores_free: used by nobody. Nodes with one `profile_id` may run the same. tenants: whom
    it is for; none: for all.
    """

    node_id: UUID
    node_name: str
    rack: int | None
    state: str
    live: bool
    seen_at: datetime
    claims: int
    slots: int | None
    cpu_milli: int | None
    cpu_used: int
    memory_mib: int | None
    memory_used: int
    gpus: int
    gpus_free: int
    gpu_milli_used: int
    cores: int
    cores_free: int
    custom: Mapping[str, int]
    custom_used: Mapping[str, int]
    profile_id: int
    tenants: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TagCount:
    """A value of a label: nodes that have it, those live and not cordoned, leases running there."""

    label: str
    value: Any
    nodes: int
    live: int
    claims: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseEvent:
    """A step in the life of a lease, number `ordinal` from 1.

    event: spawned, scheduled, ready, claimed, how an attempt ended (failed, expired, superseded,
    released, cancelled), or how the lease did (completed, failed, cancelled). at: None of a lease
    that is scheduled, but not for a time: its gang, a signal or a node is waited for. lasted: until
    the next step, or until now; None for the end.
    """

    lease_id: UUID
    ordinal: int
    at: datetime | None
    event: str
    attempt: int | None
    claim_token: int | None
    node_id: UUID | None
    node_name: str | None
    lasted: timedelta | None
    detail: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassStats:
    """A placement class and what waits and runs of it.

    words: what it asks; None after the first 500 rows. anchors: what nodes find it by. patience:
    None: the queue's. profiles: kinds of nodes that claims have found eligible so far. reach: the
    share of the nodes that suit it, 0..1, when upkeep looked last; None: not yet. retired_at: no
    lease has it any more.
    """

    class_id: int
    queue: str
    tenant: str
    service_id: UUID | None
    task_name: str
    words: str | None
    labels: Mapping[str, str]
    placement: Mapping[str, Any]
    anchors: tuple[str, ...]
    patience: timedelta | None
    pending: int
    oldest_at: datetime | None
    running: int
    profiles: int
    reach: float | None
    created_at: datetime
    retired_at: datetime | None
