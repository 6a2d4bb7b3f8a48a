"""Everywhere tasks, which have one lease on each node that suits them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict
from uuid import UUID

from hwqueue.types.base import AsJson, Json
from hwqueue.types.queues import RetryPolicy

EverywhereState = Literal["active", "stopping", "stopped"]
"""The state of an everywhere task; it is `stopping` until none of its leases is open."""

EverywhereLeaseState = Literal[
    "waiting", "earmarked", "reserved", "running", "completed", "failed", "cancelled", "gone"
]
"""How the lease of a node stands.

`earmarked`: the node keeps the room that becomes free for it. `gone`: it was deleted before upkeep
saw how it ended."""


class EverywhereOptions(TypedDict, total=False):
    """Options of an everywhere task; all of them optional, None is the default.

    everywhere_id: your own id, which makes the call idempotent. mode: when a lease ends, its node
    gets another one (`always`, the default), after failures with the delays of its retry policy; or
    none (`once`). on_unmatched: a running lease whose node does not suit any more goes on (`keep`,
    the default) or is asked to `stop`. on_cordoned: True: on cordoned nodes, too. The others are
    options of each lease, as in `SpawnOptions`.
    """

    everywhere_id: UUID | str | None
    mode: Literal["once", "always"] | None
    on_unmatched: Literal["keep", "stop"] | None
    on_cordoned: bool | None
    placement: AsJson | Mapping[str, Any] | None
    affinity_tags: Mapping[str, Any] | None
    affinity_with: UUID | str | None
    anti_affinity_with: UUID | str | None
    wire: bytes | str | None
    priority: int | None
    tenant: str | None
    service_id: UUID | str | None
    labels: Mapping[str, str] | None
    headers: Mapping[str, Any] | None
    max_attempts: int | None
    retry: RetryPolicy | Mapping[str, Any] | None
    claim_timeout: timedelta | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SpawnedEverywhere:
    """An everywhere task that was spawned.

    Attributes:
        created: False: one with this id and content was there.
        nodes: How many live nodes suit it now.
    """

    everywhere_id: UUID
    created: bool
    nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EverywhereLease:
    """The lease of an everywhere task on a node.

    Attributes:
        node: The node's name; None: it is gone.
        lease_id: The open lease, or the last one.
        reason: Why its room was not reserved at the last try; None: it was, or there was no try.
        starts: How many leases the node has had.
        failures: How many of them failed in a row.
        due_at: When its room is tried next, or the next one starts; None: not by time.
    """

    node_id: UUID
    node: str | None
    lease_id: UUID
    state: EverywhereLeaseState
    reason: str | None
    starts: int
    failures: int
    due_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EverywhereSummary:
    """An everywhere task in a list.

    Attributes:
        nodes: How many nodes have a lease, or had one; of these `waiting` wait for room or a retry
            (`earmarked` ones among them), `reserved` are booked and `running` run.
        finished_at: When the last lease of a stopped one had ended.
    """

    everywhere_id: UUID
    queue: str | None
    task_name: str
    tenant: str
    mode: str
    state: EverywhereState
    nodes: int
    waiting: int
    reserved: int
    running: int
    created_at: datetime
    stopped_at: datetime | None
    finished_at: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class EverywhereTask:
    """An everywhere task and its leases.

    Attributes:
        queue: None: it was dropped and is gone.
        nodes: How many nodes have a lease, or had one; of these `waiting` wait for room or a retry
            (`earmarked` ones among them), `reserved` are booked, `running` run, and the others have
            ended.
        finished_at: When the last lease of a stopped one had ended.
        leases: By `node_id`, a page of them.
    """

    everywhere_id: UUID
    queue: str | None
    task_name: str
    params: Json
    tenant: str
    mode: str
    on_unmatched: str
    on_cordoned: bool
    state: EverywhereState
    nodes: int
    waiting: int
    reserved: int
    running: int
    completed: int
    failed: int
    cancelled: int
    created_at: datetime
    stopped_at: datetime | None
    finished_at: datetime | None
    leases: tuple[EverywhereLease, ...]
