"""Tenants: whose leases run first."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A tenant that has a row; one without is what the row `*` says, or guaranteed.

    Attributes:
        tier: Of the leases that it spawns: those of an earlier tier run first, whatever their
            priority.
    """

    name: str
    tier: Literal["guaranteed", "best_effort", "scavenger"]
    created_at: datetime
