"""Gangs: leases that start together or not at all."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, Protocol, TypedDict
from uuid import UUID

from hwqueue.types.base import LeaseState
from hwqueue.types.explain import Holder
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

    gang_id: your own id; one that exists raises `GangExists`. min_size: how many members must start
    together, at least 2; None: all. The others join when there is room, so it goes with no
    deadline. together: a domain (`node`, `rack` or `label:KEY`), or at most 5 of them: all members
    run in one place of the first that has room; `fleet` as the last of several lets them be
    anywhere where none has. same: at most 5 node labels whose values all
    members' nodes have in common. on_lost: when a running member waits again, and fewer than
    min_size are left, the others `stop` and start again with it (default), or go on while it is
    placed again (`replace`); or a member that does not complete has failed, and the others
    `continue` while min_size, or one, are left. hold: how long nodes have for fetching their
    members, from 1 s to 1 hour; None: 30 s. one_of: the id that its alternatives share, gangs or
    leases: the first with room runs, the others are cancelled. What follows are options of each
    member that says nothing itself, as in `SpawnOptions`. With a deadline the gang fails if it has
    not started by then, or has to start again after it.
    """

    gang_id: UUID | str | None
    min_size: int | None
    together: str | list[str] | None
    same: list[str] | None
    on_lost: Literal["stop", "replace", "continue"] | None
    hold: timedelta | None
    one_of: UUID | str | None
    priority: int | None
    tenant: str | None
    labels: Mapping[str, str] | None
    headers: Mapping[str, Any] | None
    max_attempts: int | None
    retry: RetryPolicy | Mapping[str, Any] | None
    claim_timeout: timedelta | None
    max_run: timedelta | None
    deadline: datetime | timedelta | None


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
    labels: Mapping[str, Any] = field(default_factory=dict)
    reserved_until: datetime | None
    earmarked: bool = False

    @property
    def rank(self) -> int:
        """Another word for its ordinal."""
        return self.ordinal

    @property
    def is_lost(self) -> bool:
        """Whether it has ended without completing: with `on_lost` `continue` others go on."""
        return self.state in (LeaseState.FAILED, LeaseState.CANCELLED)


@dataclass(frozen=True, slots=True, kw_only=True)
class GangSummary:
    """A gang in a list.

    Attributes:
        reason: Why it was not reserved at the last try; None: it was, or there was no try.
        place: The domain that its members run in, such as `rack 2`.
        started_at: When all members, or min_size of them, were there; of one that has waited as a
            whole again since, when they were there after that.
        starts_by: While it is earmarked: when it has its room at the latest; None: not known.
        min_size: How many of its members must start together.
        missing: How many members wait to join the others.
    """

    gang_id: UUID
    queue: str
    tenant: str
    state: GangState
    reason: str | None
    size: int
    min_size: int
    missing: int
    place: str | None
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    starts_by: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """A gang and its members.

    Attributes:
        reason: Why it was not reserved at the last try, or what is missing of it; None: it was, or
            there was no try.
        size: How many members it has.
        min_size: How many of them must start together.
        missing: How many wait to join the others.
        together, same, on_lost, hold: As it was spawned.
        place: The domain that its members run in, such as `rack 2`; `fleet` where no other had room
            for them, and None where it names no domain.
        tries: How often in a row there was no room for it.
        losses: How often it went back to wait for room after it had some.
        next_try_at: While it waits.
        started_at: When all members, or min_size of them, were there; of one that has waited as a
            whole again since, when they were there after that.
        members: By rank.
        starts_by: While it is earmarked: when it has its room at the latest; None: not known.
        run_id, step: The step of a run that it is; None: it was spawned by itself.
    """

    gang_id: UUID
    queue: str
    tenant: str
    state: GangState
    reason: str | None
    size: int
    min_size: int
    missing: int
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
    run_id: UUID | None = None
    step: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GangStatus:
    """Whether the members of a claimed lease's gang are there.

    Attributes:
        ready: Each of them is claimed, or has ended; with min_size as many are, and none of those
            that start with them is yet to be fetched.
        size: How many members the gang has.
        min_size: How many of them must start together.
        retry_after: When to ask again; None: they are there.
        members: By rank.
    """

    gang_id: UUID
    ready: bool
    size: int
    min_size: int
    members: tuple[GangMember, ...]
    retry_after: timedelta | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GangKind:
    """Equal members of a gang.

    Attributes:
        members: How many.
        words: What each asks of a node.
        nodes: How many nodes may run one, whatever runs there now.
        room: How many of the members have room now, wherever.
        blocker: Of a kind that no node may run: why. code, permanent: the same as a reason code,
            and whether that is so until nodes or the members change.
    """

    task: str
    members: int
    words: str
    nodes: int
    room: int
    blocker: str | None
    code: str | None
    permanent: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GangPlace:
    """A place where members of a gang might run together.

    Attributes:
        place: As in `Gang`; None: the whole fleet.
        words: The same for people.
        nodes: How many nodes there may run members.
        room: How many members have room there now.
        emptied: How many would have if nothing ran on these nodes.
        kinds: Of how many kinds at least one member has room now.
        in_the_way: The nodes that would have to be empty so that all have room, up to 20.
        claims: What runs on these, the longest running first, up to 20; of the first five places.
        others: How many leases of tenants that the caller may not see run there, too.
    """

    place: str | None
    words: str
    nodes: int
    room: int
    emptied: int
    kinds: int
    in_the_way: tuple[str, ...]
    claims: tuple[Holder, ...]
    others: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GangWay:
    """What would let a gang start that has no room.

    Attributes:
        way: `wider` (a rack instead of a node), `anywhere`, `without_same` or `without_both`: with
            these options there is room now; `smaller`: for `members` of them; `empty`: for all,
            once nothing runs on the nodes that are in the way; `stop`: for all, once `claims` have
            stopped; `wait`: for all, by `until` at the latest.
        place: Where, as in `Gang`.
        together, same, members: Of the gang that would start.
        claims: Of `stop`: those of the caller's tenants that would have to stop, few of them.
        until: Of `wait`: when enough of what runs there is over, as its `max_run` says; others may
            take the room unless the gang is earmarked. None: not known, and `words` say why.
    """

    way: str
    words: str
    place: str | None
    together: tuple[str, ...]
    same: tuple[str, ...]
    members: int
    claims: tuple[Holder, ...] = ()
    until: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GangForecast:
    """Whether a gang that is not spawned would start now; else why not: see `GangExplanation`."""

    queue: str
    headline: str
    code: str
    permanent: bool
    as_of: datetime
    size: int
    kinds: tuple[GangKind, ...]
    places: tuple[GangPlace, ...]
    place_count: int
    ways: tuple[GangWay, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GangExplanation:
    """Why a gang is where it is.

    Attributes:
        headline: One sentence.
        code: `ready` when a place has room for all, a reason code, or the state.
        permanent: No place has room for all even if nothing ran there, or the gang has ended.
        waiting: How many members wait. What follows is about these, and empty unless the gang
            waits for room. Of one that is earmarked `places` and `ways` are about the room that
            is kept for it.
        kinds: The ten with most members.
        places: The 20 with most room, of `place_count`.
        ways: What would let it start.
    """

    gang_id: UUID
    queue: str
    state: GangState
    headline: str
    code: str
    permanent: bool
    as_of: datetime
    size: int
    waiting: int
    kinds: tuple[GangKind, ...]
    places: tuple[GangPlace, ...]
    place_count: int
    ways: tuple[GangWay, ...]
