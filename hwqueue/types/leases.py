"""Leases: what is spawned, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal, TypedDict
from uuid import UUID

from hwqueue.types.base import AsJson, Json, LeaseState, seconds
from hwqueue.types.claims import Assignment
from hwqueue.types.queues import RetryPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Unique:
    """At most one lease of this key in a queue of a tenant.

    Attributes:
        key: Up to 255 characters.
        hold: None: while the lease is open (scheduled, pending or claimed). A span, from 1 s to 366
            days: for so long, whatever becomes of it.
        on_conflict: What a spawn does while another lease holds the key. `keep`: returns that one.
            `replace`: sets the new task, params and options if it waits, and returns it.
            `raise`: raises `UniqueConflict`.
    """

    key: str
    hold: timedelta | None = None
    on_conflict: Literal["keep", "replace", "raise"] = "keep"

    def as_json(self) -> dict[str, Any]:
        """The JSON object that the SQL functions take."""
        held = "open" if self.hold is None else seconds(self.hold)
        return {"key": self.key, "while": held, "on_conflict": self.on_conflict}


@dataclass(frozen=True, slots=True, kw_only=True)
class Replaces:
    """A lease that takes the place of another one, on its node and in its room.

    Attributes:
        lease: The one that it replaces; it may run or wait.
        service: Instead: one of this service that is older, the one that has run longest first.
        then: What becomes of that one: `cancel`, or `requeue`: it runs again elsewhere.
        overlap: Where the node has room for both, the other one is asked to stop once this one
            runs; else it is asked first.
    """

    lease: UUID | str | None = None
    service: UUID | str | None = None
    then: Literal["cancel", "requeue"] = "cancel"
    overlap: bool = False

    def as_json(self) -> dict[str, Any]:
        """The JSON object that the SQL functions take."""
        named = {"lease": self.lease, "service": self.service}
        known = {name: str(value) for name, value in named.items() if value is not None}
        return {**known, "then": self.then, "overlap": self.overlap}


class SpawnOptions(TypedDict, total=False):
    """Options of a spawn; what is None counts as not given.

    lease_id: your own id; one that exists is an error. affinity_tags: node labels must contain
    them; ANDed with `placement`. affinity_with, anti_affinity_with: prefer that node, prefer any
    other. wire: a params blob, as bytes or as text (hex with a leading `\\x`, else base64), ANDed
    with `placement`, too. priority: -32768..32767, higher runs first. labels: of the lease, text to
    text.
    available_at or delay: not claimable before. deadline: not claimed by then, it fails. As a
    timedelta a time counts from now, by the database's clock.
    patience: how long it waits for a better node, at most; else the queue's. max_run: how long it
    may run; then it is asked to stop, and the attempt fails. None: as long as it takes.
    idempotency_key: unique per tenant and queue; the same key with the same content returns
    the first lease.
    unique: at most one open lease of a key, see `Unique`.
    one_of: an id of your own that alternatives share, leases or gangs: the first that is claimed or
    reserved runs, the others are cancelled; not with `unique`. replaces: it takes the place of
    another lease, see `Replaces`; not with `unique`, `one_of`, `available_at` or `delay`.
    limits: names, or `{name: key}` of those by key; not with `one_of` or `replaces`.
    headers: carried along, not interpreted. notify: False lets workers find the lease when they
    next poll.
    """

    lease_id: UUID | str | None
    placement: AsJson | Mapping[str, Any] | None
    affinity_tags: Mapping[str, Any] | None
    affinity_with: UUID | str | None
    anti_affinity_with: UUID | str | None
    wire: bytes | str | None
    priority: int | None
    tenant: str | None
    service_id: UUID | str | None
    labels: Mapping[str, str] | None
    available_at: datetime | timedelta | None
    delay: timedelta | None
    max_attempts: int | None
    retry: RetryPolicy | Mapping[str, Any] | None
    claim_timeout: timedelta | None
    deadline: datetime | timedelta | None
    patience: timedelta | None
    max_run: timedelta | None
    idempotency_key: str | None
    unique: Unique | Mapping[str, Any] | None
    headers: Mapping[str, Any] | None
    notify: bool | None
    one_of: UUID | str | None
    replaces: Replaces | Mapping[str, Any] | None
    limits: Sequence[str] | Mapping[str, str | None] | None


class LeaseChanges(TypedDict, total=False):
    """What `update_lease` may change; None takes away (no placement, no labels, no deadline).

    placement and wire are ANDed, and together replace what the lease asked of a node, whichever of
    them is given. queue: it moves there, with its idempotency key; attempts, retries and timeouts
    that the lease does not say itself are those of that queue from then on.
    """

    placement: AsJson | Mapping[str, Any] | None
    wire: bytes | str | None
    labels: Mapping[str, str] | None
    priority: int
    available_at: datetime
    deadline: datetime | None
    queue: str


class LeaseFilter(TypedDict, total=False):
    """Which leases of a queue are meant; a key that is left out, or None, means any.

    state: For a bulk call one that it can change.
    tenant: "" means leases without one.
    node_id: Only what runs on this node now.
    labels: Leases that have all of these.
    idempotency_key: The lease that was spawned with it; needs the queue.
    created_from, created_before, finished_from, finished_before: From this time on, before it; a
        timedelta below zero is how long ago, by the database's clock.
    error_type: What kind of error they ended with, such as `TimeoutError`.
    """

    state: LeaseState | str | None
    task: str | None
    tenant: str | None
    service_id: UUID | str | None
    node_id: UUID | str | None
    labels: Mapping[str, str] | None
    idempotency_key: str | None
    created_from: datetime | timedelta | None
    created_before: datetime | timedelta | None
    finished_from: datetime | timedelta | None
    finished_before: datetime | timedelta | None
    error_type: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseCount:
    """How many leases of a page a filter means; `next_cursor` is None after the last page."""

    lease_count: int
    next_cursor: dict[str, Json] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkPage:
    """What a bulk call did to the leases of one page.

    Attributes:
        changed: Cancelled or asked to stop, requeued, updated, or deleted.
        skipped: Another session holds them, or has changed them meanwhile.
        next_cursor: Where the next page begins; None after the last one.
    """

    changed: tuple[UUID, ...]
    skipped: tuple[UUID, ...]
    next_cursor: dict[str, Json] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkResult:
    """What a bulk call did in all its pages: how many changed, and which were skipped."""

    changed: int
    skipped: tuple[UUID, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSpec:
    """One lease of a `spawn_leases` batch."""

    task: str
    params: Json = field(default_factory=dict)
    options: SpawnOptions | Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpawnResult:
    """A spawned lease; `created` is False when the idempotency key had it already.

    warnings: what keeps every live node from it, in sentences, as upkeep found when it last looked.
    None: it has not looked yet, or it was spawned in a batch; `spawn_warnings` looks now.
    """

    lease_id: UUID
    created: bool
    state: LeaseState
    warnings: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AwaitedLease:
    """The state of a lease that somebody waits for; None: there is no such lease.

    payload: what a notification of its end on channel `hwqueue_ended` carries; None if none was
    asked for.
    """

    lease_id: UUID
    state: LeaseState | None
    payload: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a handler said it had come, when it said so last.

    fraction: from 0 to 1; None: not known. done, total: in the handler's unit; None: it does not
    count.
    """

    fraction: float | None
    done: int | None
    total: int | None
    message: str | None
    reported_at: datetime

    @property
    def words(self) -> str:
        """It in a line: `40 %, 40 of 100: frame 40`."""
        share = None if self.fraction is None else f"{100 * self.fraction:.0f} %"
        counts = None if self.done is None else f"{self.done:,}"
        if counts and self.total is not None:
            counts += f" of {self.total:,}"
        figures = ", ".join(part for part in (share, counts) if part)
        return ": ".join(part for part in (figures, self.message) if part) or "reported"


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """What a handler logged.

    line: its number in its claim, from 1. dropped: how many lines of the claim were logged before
    it, after the one before it, and are not kept. logged_at: by the clock of its node. level:
    debug, info, warning or error. cursor: where a page after this line begins.
    """

    lease_id: UUID
    attempt: int
    claim_token: int
    line: int
    dropped: int
    logged_at: datetime
    level: str
    message: str
    fields: Mapping[str, Any] | None
    cursor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A claim that ended without completing the lease, or that a retry of its run has run again.

    outcome: failed, expired, superseded, released or cancelled; completed only of a step of a run
    that was run again. progress: as reported last. assignment: None when nothing was counted.
    """

    attempt: int
    claim_token: int
    node_id: UUID
    outcome: str
    claimed_at: datetime
    ended_at: datetime
    error: Json
    progress: Progress | None = None
    assignment: Assignment | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSummary:
    """A lease without its payload.

    claim_token, node_id and expires_at are those of the running claim; stop_reason says why it was
    asked to stop, or will be when a taint is tolerated no longer or a grace is over: `cancelled`,
    `preempted`, `tier_preempted`, `run_time_exceeded` or `placement_broken`. attempt: how many have
    been used up, the running one included. available_at: None of a lease that waits for something
    else than a time: its gang, a signal, its node, the lease that it replaces. expires_at: None
    while room is kept for it.
    """

    lease_id: UUID
    queue: str
    task_name: str
    state: LeaseState
    priority: int
    tenant: str
    service_id: UUID | None
    labels: Mapping[str, str]
    placement: Mapping[str, Any]
    headers: Mapping[str, Any] | None
    attempt: int
    max_attempts: int
    available_at: datetime | None
    deadline: datetime | None
    created_at: datetime
    claimed_at: datetime | None
    finished_at: datetime | None
    expires_at: datetime | None
    node_id: UUID | None
    claim_token: int | None
    error: Json
    idempotency_key: str | None
    stop_reason: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease(LeaseSummary):
    """All that is known about a lease.

    assignment: of the running claim, or of the one that ended the lease. wire: the params blob as
    it was sent; what it asks is in `placement`. progress: of the claim of which the assignment is;
    None: it has reported none.
    """

    params: Json
    result: Json
    attempts: tuple[Attempt, ...]
    assignment: Assignment | None
    wire: bytes | None
    progress: Progress | None = None
