"""What the address of a page says; what there is no such value for counts as not said."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request

PAGE_SIZES = (50, 100, 200)


def texts(request: Request, names: Iterable[str]) -> dict[str, str]:
    """What was typed in these fields; empty: nothing."""
    return {name: request.query_params.get(name, "").strip() for name in names}


def one_of(request: Request, name: str, choices: Collection[str], usual: str = "") -> str:
    """The one that was chosen."""
    chosen = request.query_params.get(name, "")
    return chosen if chosen in choices else usual


def number(request: Request, name: str = "page", usual: int = 0) -> int:
    """A number of up to 18 digits."""
    text = request.query_params.get(name, "")
    return int(text) if text.isdecimal() and len(text) <= 18 else usual


@dataclass(frozen=True, slots=True)
class Listing:
    """A list that is shown a page at a time: which state, what filters, how many rows."""

    states: Collection[str]
    state: str
    filters: dict[str, str]
    size: int
    paged: bool

    @classmethod
    def of(cls, request: Request, states: Collection[str], filters: Iterable[str] = ()) -> Listing:
        """The list that is asked for."""
        return cls(
            states=states,
            state=one_of(request, "state", states),
            filters=texts(request, filters),
            size=int(one_of(request, "size", [str(each) for each in PAGE_SIZES], str(PAGE_SIZES[0]))),
            paged="before" in request.query_params,
        )

    @property
    def wanted(self) -> dict[str, str]:
        """The state and the filters."""
        return {"state": self.state, **self.filters}

    def shown(self, rows: Sequence[Any]) -> dict[str, Any]:
        """What templates need, of one row more than the page has."""
        return {
            "rows": rows[: self.size],
            "more": len(rows) > self.size,
            "paged": self.paged,
            "states": self.states,
            "state": self.state,
            "filters": self.filters,
            "query": {**self.wanted, "size": "" if self.size == PAGE_SIZES[0] else self.size},
            "size": self.size,
            "sizes": PAGE_SIZES,
        }
