"""Explanations: why a lease is where it is, and what nodes that are not there would change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from hwqueue.types.base import LeaseState
from hwqueue.types.nodes import Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class FunnelStage:
    """How many registered nodes are left after a stage.

    stage: live, cordon, served (its worker polls the queue and has a handler for the task), labels,
    taints, trust, isolation, capacity (what a node has in all), free (what is left of it now), away
    (with and away from other leases), spread; in this order. unannounced: of stage served, how many
    of them have not said what they serve, and count as serving anything.
    """

    stage: str
    nodes: int
    unannounced: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SoleBlocker:
    """What alone keeps nodes out.

    Without it they would match (be live, not cordoned, of the right kind and size); of the stages
    free, away and spread: could take the lease now. words: what it asks. nodes: how many. samples:
    up to three of their names.
    """

    stage: str
    code: str
    permanent: bool
    words: str
    nodes: int
    samples: tuple[str, ...]
    predicate: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """A running lease that has what another one wants.

    node: its name. expires_at: None: its room is kept for it, it runs not yet. stopping: it was
    asked to stop. holds: what it has set aside, in words; None
    where its place is the matter.
    """

    lease_id: UUID
    task: str
    queue: str
    node: str
    since: datetime
    expires_at: datetime | None
    service_id: UUID | None = None
    stopping: bool = False
    holds: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NearReason(Reason):
    """Why a near node may not run the lease.

    wanted, has: in words; None: nothing to say. place: the rack, zone or the like that it is about.
    holders: up to five running leases that are the reason, the longest running first.
    """

    wanted: str | None = None
    has: str | None = None
    place: str | None = None
    holders: tuple[Holder, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NearNode:
    """A node and all that keeps the lease off it. state: live, silent or cordoned."""

    node_id: UUID
    node: str
    rack: int | None
    state: str
    seen_at: datetime
    reasons: tuple[NearReason, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Help:
    """What would let leases of the class run.

    action: resume, register, revive, uncordon, serve, tolerate, admit, attest, resize, isolate, relax,
    add_node, wait or correct (a name that no live node has). nodes: how many it opens. leases:
    how many of the class wait, counted to 10,001. samples: names of nodes. lease_id: for
    `wait`, the lease whose end it is.
    """

    action: str
    words: str
    leases: int
    nodes: int | None = None
    samples: tuple[str, ...] = ()
    predicate: Mapping[str, Any] | None = None
    lease_id: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseExplanation:
    """Why a lease is where it is.

    headline: one sentence. code: a reason code; `ready` when a node could take it now; else what
    the lease is. permanent: until nodes or the lease change. waits_until: when it becomes
    claimable, stops waiting for a better node, or its claim ends. position: ready leases of its
    queue that come before it, counted to 10,001. words: what it asks of a node. Only of a pending
    lease, else None or empty: position, funnel, sole_blockers, nearest (the 20 nodes that fail the
    least), help, pending (ready leases of its class, counted to 10,001), and nodes_registered,
    _live, _matching (live, not cordoned, serving it, of the right kind and size) and _free (could
    take it now). released: of the lease of a step, which step released it and what else it came
    after; None for others.
    """

    lease_id: UUID
    state: LeaseState
    queue: str
    class_id: int
    headline: str
    code: str
    permanent: bool
    waits_until: datetime | None
    position: int | None
    as_of: datetime
    funnel: tuple[FunnelStage, ...] | None
    sole_blockers: tuple[SoleBlocker, ...] | None
    nearest: tuple[NearNode, ...] | None
    help: tuple[Help, ...] | None
    words: str
    pending: int | None
    nodes_registered: int | None
    nodes_live: int | None
    nodes_matching: int | None
    nodes_free: int | None
    released: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingLease:
    """A lease that is ready. attempt: the one to come."""

    lease_id: UUID
    priority: int
    eligible_at: datetime
    attempt: int
    deadline: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassExplanation:
    """Why leases of a placement class are pending; see `LeaseExplanation`.

    waits_until: of the first in line. leases: the first 20 in line.
    """

    class_id: int
    queue: str
    words: str
    headline: str
    code: str
    permanent: bool
    waits_until: datetime | None
    as_of: datetime
    funnel: tuple[FunnelStage, ...]
    sole_blockers: tuple[SoleBlocker, ...]
    nearest: tuple[NearNode, ...]
    help: tuple[Help, ...]
    pending: int
    nodes_registered: int
    nodes_live: int
    nodes_matching: int
    nodes_free: int
    leases: tuple[WaitingLease, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedClass:
    """A placement class that nodes could run if they were there.

    words: what it asks. pending: leases that are ready, counted to 10,001. fits_at_once: how many
    of them the nodes take at once when idle; None: they count nothing of what the leases need.
    is_served_already: a live node that is not cordoned matches, busy or not; False if too long to judge.
    """

    class_id: int
    queue: str
    words: str
    pending: int
    oldest_at: datetime
    fits_at_once: int | None
    is_served_already: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Victim:
    """A lease of a later tier that runs where another one would get its room. ran: for how long."""

    lease_id: UUID
    queue: str
    task: str
    tenant: str
    tier: str
    ran: timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class Preemption:
    """Where a pending lease would get room if leases of later tiers stopped, and which.

    node, node_id: None when there is no such place; reason says why: `not_pending`, `fits` (a node
    has room now), `no_victims`. victims: in the order in which they are chosen, none in vain; none
    at all where others are leaving already.
    """

    node_id: UUID | None
    node: str | None
    victims: tuple[Victim, ...]
    reason: str | None
