"""Limits: how many leases run at once, how many start in a time, whose turn it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A limit, and how much of it is in use.

    Attributes:
        kind: `slots`, `rate` or `fair`.
        spec: In normal form; spans in seconds.
        lanes: Keys that are in use or were lately, counted to 10,001; of a limit without keys 1 at
            most. Of one with more keys the other figures are of these alone.
        used: What it has let through and has not ended; of a rate or a fair one what stands in
            line.
        parked: What waits for it, counted to 10,001.
        oldest_at: Of the leases that are first in their lanes: when the first one was spawned.
        closed_until: Of the lane that is closed longest; None: all are open.
        opens_at: Of a rate: when the next one that waits may start, at the earliest.
        queues: Those whose policy names it.
    """

    name: str
    kind: str
    spec: Mapping[str, Any]
    lanes: int
    used: int
    parked: int
    oldest_at: datetime | None
    closed_until: datetime | None
    opens_at: datetime | None
    queues: tuple[str, ...]
    created_at: datetime

    @property
    def words(self) -> str:
        """What it bounds: `2 at once, each key`."""
        if self.spec.get("by") == "quota":
            return "as many at once as each tenant has slots"
        if self.kind == "slots":
            said = f"{self.spec['slots']} at once"
        elif self.kind == "rate":
            said = "{count:g} in {per:g} s, {burst:g} at once".format(**self.spec["rate"])
        else:
            said = "in turn"
        return said + (f", each {self.spec['by']}" if "by" in self.spec else "")

    @property
    def most(self) -> int | None:
        """How much its one lane lets through at a time; None: there is a lane for each key."""
        if "by" in self.spec:
            return None
        return int(self.spec["slots"] if self.kind == "slots" else self.spec["rate"]["burst"])


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitLane:
    """The lane of a key of a limit, or the one lane that all leases share.

    Attributes:
        tenant, key: Whose it is; "": none.
        weight: Of a fair limit: how often its turn comes.
        used, most: What it has let through, and how much that may be.
        parked: What waits, counted to 10,001; where more than ten lanes are asked for, to 1 +
            100,000 / their number.
        lease_id, since: The first that waits, and when it was spawned.
        closed_until: Nothing passes before; None: it is open.
        opens_at: Of a rate: when the next may start.
    """

    tenant: str
    key: str
    weight: float
    used: int
    most: int
    parked: int
    lease_id: UUID | None
    since: datetime | None
    closed_until: datetime | None
    opens_at: datetime | None
