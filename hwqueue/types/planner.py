"""What a planner reads, and what it says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerRow:
    """A row of a page of `planner_view`.

    Attributes:
        item: A queue, a placement class, a group of nodes, a gang, or a class with the nodes that
            suit it; None: the row that only says `next`.
        next: What to pass as `after` for the page after.
    """

    item: Mapping[str, Any] | None
    next: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceRoom:
    """Nodes of one place that have the same room for members of gangs.

    Attributes:
        place: A value of the domain that the gangs are together in; empty: the whole fleet.
        nodes: How many there are.
        rooms: By class, how many leases of it one of them has room for, if it gets no others.
    """

    place: str
    nodes: int
    rooms: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasePlace:
    """What became of the node that was proposed for a lease.

    Attributes:
        verdict: Of `reserve_leases`: `reserved`; `no_room`, `does_not_suit`, `blocked`, `taken`,
            `busy`, `deposed` or `old_round` where nothing was changed. Of `assigned_leases`:
            `reserved`, `fetched`, `expired` or `gone`.
    """

    lease_id: UUID
    verdict: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerStatus:
    """What the planner that leads has found.

    Attributes:
        holder: Its name; None: none leads.
        gpus: GPUs of live nodes; None, as the next two: nothing was said lately.
        allocated: How many of them are in use; shares count as parts.
        bound: How many could be in use at most, if what waits was placed at best.
        prices: Of each queue, {"queue", "device_worth", "worth_until"}.
        leases: What became of single leases that planners have assigned to nodes, in all: how many
            were `proposed`, `reserved`, `fetched`, `expired` and so on.
        seconds: How long the parts of the last round took: `gangs`, `leases`, `read`, `solve`.
        resting: How many nodes it proposes no leases for, because they have not fetched some.
    """

    holder: str | None
    epoch: int | None
    leads_until: datetime | None
    gpus: float | None
    allocated: float | None
    bound: float | None
    prices: Sequence[Mapping[str, Any]]
    leases: Mapping[str, int]
    seconds: Mapping[str, float] | None
    resting: int | None

    @classmethod
    def nobody(cls) -> PlannerStatus:
        """What is said where no planner leads."""
        return cls(**dict.fromkeys(cls.__dataclass_fields__) | {"prices": [], "leases": {}})  # type: ignore[arg-type]
