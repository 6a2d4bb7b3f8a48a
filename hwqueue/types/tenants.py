"""Tenants: whose leases run first, and which logins call for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A tenant that has a row, or a login that is bound to it.

    Attributes:
        tier: Of the leases that it spawns: those of an earlier tier run first, whatever their
            priority. None: it has no row, and is what the row `*` says, or guaranteed.
        logins: The rights of each login that is bound to it: `read`, `spawn`, `operate`.
    """

    name: str
    tier: Literal["guaranteed", "best_effort", "scavenger"] | None
    created_at: datetime | None
    logins: Mapping[str, Sequence[str]]
