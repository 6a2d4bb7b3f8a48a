"""Tenants: whose leases run first, how much of what they may have, and which logins call for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

Tier = Literal["guaranteed", "best_effort", "scavenger"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A tenant that has a row, or a login that is bound to it.

    Attributes:
        tier: Of the leases that it spawns: those of an earlier tier run first, whatever their
            priority. None: it has no row, and is what the row `*` says, or guaranteed.
        spec: What it may have: `tier` and `weight`, `slots`, `pending`, `classes` and `spawns`; and
            `shared_with`.
        usage: By tenant, what it had of `pending` and `classes`, and how many of its `spawns` still
            counted, at `counted_at`, where there is such a quota; of the row `*` the tenants without a
            row that have all they may or have spawned.
        logins: The rights of each login that is bound to it: `read`, `spawn`, `operate`.
    """

    name: str
    tier: Tier | None
    created_at: datetime | None
    spec: dict[str, Any]
    usage: dict[str, dict[str, int]]
    counted_at: datetime | None
    logins: Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantUsage:
    """What a tenant uses, beside what it may.

    Attributes:
        tenant: `""`: the leases of none; `*`: has the row of all without one, and no leases.
        spec: What binds it: its own row, or that of `*`.
        pending: What waits; `parked`: of that what waits for a slot.
        started: Claims that began after `since`: an hour ago, or where much ended later than that; of
            leases that are kept.
        share: Of what started of its tier; None: nothing did.
        due: Its weight as a part of those of the tenants of the tier that started some or wait; None:
            there is none.
    """

    tenant: str
    tier: Tier
    spec: Mapping[str, Any]
    pending: int
    parked: int
    running: int
    classes: int
    started: int
    since: datetime
    share: float | None
    due: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptedClaim:
    """A claim that was asked to stop for a lease or a gang of an earlier tier.

    Attributes:
        lease_id, tenant, tier: Whose claim it was; None: the lease is gone.
        for_lease, for_gang, for_tenant, for_tier: For whom: a single lease or a gang.
    """

    at: datetime
    stop_by: datetime | None
    node_id: UUID
    lease_id: UUID
    tenant: str | None
    tier: Tier | None
    for_lease: UUID | None
    for_gang: UUID | None
    for_tenant: str | None
    for_tier: Tier | None
