"""Several measurements of one thing, told by their median and their extremes."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Spread:
    """A median with its extremes, in the unit of what was measured."""

    median: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """The spread of at least one value."""
        return cls(statistics.median(values), min(values), max(values))

    @classmethod
    def of_ratios(cls, values: Sequence[float], bases: Sequence[float]) -> "Spread":
        """The spread of value / base, round by round: what the machine's mood leaves alone."""
        return cls.of([value / base for value, base in zip(values, bases, strict=True)])

    def __str__(self) -> str:
        return f"{_short(self.median)} [{_short(self.least)}-{_short(self.most)}]"


def percentile(values: Iterable[float], percent: float) -> float:
    """The value that so many percent of at least one value do not exceed (nearest rank)."""
    ordered = sorted(values)
    rank = max(1, math.ceil(len(ordered) * percent / 100))
    return ordered[rank - 1]


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
