"""Committed limits of what calls may cost, and what is above them."""

import json
import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HEADROOM = 1.1
ROWS = "rows: "  # figures of this name are exact: no headroom
_HEADER = """\
# What calls may cost, written by `python -m benchmarks smoke --write`: with a tenth of headroom for
# pages and log, with none for rows. What has no line here has the limit 0.
"""

Figures = Mapping[str, Mapping[str, float]]
"""By call ("scene: function"), then by what is counted."""


@dataclass(frozen=True)
class Excess:
    """A figure above its limit."""

    call: str
    what: str
    limit: float
    found: float


def read(path: Path) -> Figures:
    """The limits in a file."""
    return tomllib.loads(path.read_text(encoding="utf-8"))


def write(path: Path, found: Figures) -> None:
    """Make limits of what was found."""
    path.write_text(_HEADER + "".join(_sections(found)), encoding="utf-8")


def exceeded(found: Figures, limits: Figures) -> list[Excess]:
    """Everything above its limit."""
    return [
        Excess(call, what, limit, figure)
        for call, figures in found.items()
        for what, figure in figures.items()
        if figure > (limit := limits.get(call, {}).get(what, 0))
    ]


def largest(attempts: Sequence[Figures]) -> Figures:
    """The largest of each figure: some move between attempts, and a limit holds for all."""
    found: dict[str, dict[str, float]] = {}
    for attempt in attempts:
        for call, figures in attempt.items():
            kept = found.setdefault(call, {})
            for what, figure in figures.items():
                kept[what] = max(figure, kept.get(what, 0))
    return found


def _sections(found: Figures) -> Iterator[str]:
    for call, figures in found.items():
        yield f"\n[{json.dumps(call)}]\n"
        yield from (
            f"{json.dumps(what)} = {_limit(what, figure)}\n" for what, figure in figures.items() if figure
        )


def _limit(what: str, figure: float) -> int:
    return math.ceil(figure if what.startswith(ROWS) else figure * HEADROOM)
