"""Numbers and times as a person reads them, in few characters."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

_STEPS = " ▁▂▃▄▅▆▇█"


def age(since: datetime | None, now: datetime) -> str:
    """How long ago: 45s, 12m, 3h, 5d; a dash for never. Clocks that differ a little are at 0s."""
    return "-" if since is None else span(now - since)


def span(length: timedelta) -> str:
    """The same of a span."""
    seconds = max(0, int(length.total_seconds()))
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def count(number: float | None) -> str:
    """1,204; a dash for what is not known."""
    return "-" if number is None else f"{number:,.0f}"


def amount(number: float) -> str:
    """At most one digit after the point: 3.5, 8."""
    return f"{number:,.1f}".removesuffix(".0")


def use(used: float, total: float | None) -> str:
    """What is in use of what there is; a dash where it is not counted or there is none."""
    return "-" if not total else f"{amount(used)}/{amount(total)}"


def sparkline(values: Sequence[float]) -> str:
    """A character for each value, as high as it is beside the greatest; a blank for none."""
    most = max(values, default=0) or 1
    return "".join(_STEPS[0 if value <= 0 else max(1, round(8 * value / most))] for value in values)
