"""Gangs: leases that start together or not at all."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, Protocol, TypedDict
from uuid import UUID

from hwqueue.types.base import LeaseState
from hwqueue.types.queues import RetryPolicy

GangState = Literal[
    "waiting",
    "earmarked",
    "reserved",
    "running",
    "stopping",
    "cancelling",
    "completed",
    "failed",
    "cancelled",
]
"""The state of a gang; the last three are ends."""


class GangOptions(TypedDict, total=False):
    """Options of a gang; all of them optional, None is the default.

    gang_id: your own id; one that exists raises `GangExists`. together: a domain (`node`, `rack` or
    `label:KEY`), or at most 5 of them: all members run in one place of the first that has room.
    same: at most 5 node labels whose values all members' nodes have in common. on_lost: when a
    running member waits again, the others `stop` and start again with it (default), or go on while
    it is placed again (`replace`). hold: how long nodes have for fetching their members, from 1 s
    to 1 hour; None: 30 s. The others are options of each member that says nothing itself, as in
    `SpawnOptions`.
    """

    gang_id: UUID | str | None
    together: str | list[str] | None
    same: list[str] | None
    on_lost: Literal["stop", "replace"] | None
    hold: timedelta | None
    priority: int | None
    tenant: str | None
    labels: Mapping[str, str] | None
    headers: Mapping[str, Any] | None
    max_attempts: int | None
    retry: RetryPolicy | Mapping[str, Any] | None
    claim_timeout: timedelta | None
    max_run: timedelta | None
    deadline: datetime | None


class AsMember(Protocol):
    """A member with options that the gang's own go before, such as `hwqueue.Member`."""

    def as_member(self, gang_options: Collection[str]) -> dict[str, Any]:
        """The JSON object that `spawn_gang` takes; its gang has these options."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SpawnedMember:
    """A lease of a gang that was spawned; ordinal: its rank in the gang, from 0."""

    ordinal: int
    lease_id: UUID
    gang_id: UUID
    shard_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GangMember:
    """A lease of a gang.

    Attributes:
        ordinal: Its rank in the gang, from 0.
        state: None: the lease is gone.
        node_id, node: Where it runs or is reserved, or ran last; None: nowhere yet.
        labels: Of that node.
        reserved_until: When its reservation ends unless the node fetches it; None: it is fetched,
            or waits.
        earmarked: Whether its room is kept for it while others still use it.
    """

    ordinal: int
    lease_id: UUID
    state: LeaseState | None
    node_id: UUID | None
    node: str | None
    labels: Mapping[str, Any]
    reserved_until: datetime | None
    earmarked: bool = False

    @property
    def rank(self) -> int:
        """Another word for its ordinal."""
        return self.ordinal


@dataclass(frozen=True, slots=True, kw_only=True)
class GangSummary:
    """A gang in a list.

    Attributes:
        reason: Why it was not reserved at the last try; None: it was, or there was no try.
        place: The domain that its members run in, such as `rack 2`.
        started_at: When all members were there for the first time.
        starts_by: While it is earmarked: when it has its room at the latest; None: not known.
    """

    gang_id: UUID
    shard_id: int
    queue: str
    tenant: str
    state: GangState
    reason: str | None
    size: int
    place: str | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    starts_by: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """A gang and its members.

    Attributes:
        reason: Why it was not reserved at the last try; None: it was, or there was no try.
        size: How many members it has.
        together, same, on_lost, hold: As it was spawned.
        place: The domain that its members run in, such as `rack 2`.
        tries: How often in a row there was no room for it.
        losses: How often it went back to wait for room after it had some.
        next_try_at: While it waits.
        started_at: When all members were there for the first time.
        members: By rank.
        starts_by: While it is earmarked: when it has its room at the latest; None: not known.
    """

    gang_id: UUID
    shard_id: int
    queue: str
    tenant: str
    state: GangState
    reason: str | None
    size: int
    together: tuple[str, ...]
    same: tuple[str, ...]
    on_lost: str
    hold: timedelta
    place: str | None
    tries: int
    losses: int
    next_try_at: datetime | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    members: tuple[GangMember, ...]
    starts_by: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GangStatus:
    """Whether all members of a claimed lease's gang are there.

    Attributes:
        ready: Each of them is claimed, or has ended.
        retry_after: When to ask again; None: they are there.
        members: By rank.
    """

    gang_id: UUID
    shard_id: int
    ready: bool
    size: int
    members: tuple[GangMember, ...]
    retry_after: timedelta | None
