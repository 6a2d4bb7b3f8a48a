"""Tenants: whose leases run first, how much of what they may have, and which logins call for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A tenant that has a row, or a login that is bound to it.

    Attributes:
        tier: Of the leases that it spawns: those of an earlier tier run first, whatever their
            priority. None: it has no row, and is what the row `*` says, or guaranteed.
        spec: What it may have, `tier` and `weight`, `slots`, `pending` and `classes`.
        usage: By tenant, what it had of `pending` and `classes` at `counted_at`, where there is such
            a quota; of the row `*` the tenants without a row that have all they may.
        logins: The rights of each login that is bound to it: `read`, `spawn`, `operate`.
    """

    name: str
    tier: Literal["guaranteed", "best_effort", "scavenger"] | None
    created_at: datetime | None
    spec: dict[str, Any]
    usage: dict[str, dict[str, int]]
    counted_at: datetime | None
    logins: Mapping[str, Sequence[str]]
