"""What a planner reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerRow:
    """A row of a page of `planner_view`.

    Attributes:
        item: A queue, a placement class or a group of nodes; None: the row that only says `next`.
        next: What to pass as `after` for the page after.
    """

    item: Mapping[str, Any] | None
    next: str | None
