"""What a planner reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerRow:
    """A row of a page of `planner_view`.

    Attributes:
        item: A queue, a placement class, a group of nodes or a gang; None: the row that only says
            `next`.
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
