"""How durations, counts, sizes and texts of others are written for people, everywhere alike.

Durations are spelled as the database spells them in explanations (`hwqueue.span_words`); a test
compares the two. What is unknown is a dash, never a zero.
"""

from __future__ import annotations

import json
import math
from datetime import datetime, timedelta
from typing import Any

UNKNOWN = "-"

_MICROSECOND = timedelta(microseconds=1)
_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"))
_BYTE_UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))


def one_line(fact: object) -> str:
    """A fact for a log: nothing in it begins another line, or moves a terminal's cursor."""
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in str(fact)
    )


def first_line(fact: object) -> str:
    """The first line of a text, of an error without the excerpt of SQL that Postgres adds."""
    return str(fact).strip().partition("\n")[0]


def label_value(text: str) -> Any:
    """The value that somebody means who types the value of a node's label or of a tag.

    `true`, `false`, and a number if JSON would write it in just these characters: `8` and `1.5`,
    but not `3.10`, `12.0`, `007` or `52e6410`, which stay text. Quotes force text: `"8"` is the
    text `8`. All else is text as it stands.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if isinstance(value, bool | str):
        return value
    is_number = isinstance(value, int | float) and math.isfinite(value)
    return value if is_number and json.dumps(value) == text.removesuffix(".0") else text


def duration(span: timedelta | float | None) -> str:
    """A duration (seconds, if a number) in its largest units: `1.4 s`, `3 min`, `2 h 05 min`.

    From a day on `4 d 3 h`. Tenths of a second are rounded, whole units cut off; less than nothing
    is `0 s`.
    """
    if span is None:
        return UNKNOWN
    if not isinstance(span, timedelta):
        span = timedelta(seconds=span)
    microseconds = max(span // _MICROSECOND, 0)
    seconds = microseconds // 1_000_000
    if seconds < 60:
        tenths = (microseconds + 50_000) // 100_000
        return f"{tenths // 10}.{tenths % 10} s" if tenths % 10 else f"{tenths // 10} s"
    if seconds < 3600:
        return f"{seconds // 60} min"
    if seconds < 86_400:
        return f"{seconds // 3600} h {seconds % 3600 // 60:02} min"
    return f"{seconds // 86_400} d {seconds % 86_400 // 3600} h"


def bar(share: float | None, cells: int = 20) -> str:
    """A share from 0 to 1 as a bar, `cells` characters long; a dash where it is not known.

    Only the whole fills it.
    """
    if share is None:
        return UNKNOWN
    full = min(int(max(share, 0.0) * cells), cells)
    return "█" * full + "░" * (cells - full)


def exact_duration(span: timedelta | None) -> str:
    """A duration that somebody set, with nothing cut off: `90 s` is `1 min 30 s`."""
    if span is None:
        return UNKNOWN
    seconds, parts = span.total_seconds(), []
    for length, unit in _UNITS:
        if seconds >= length:
            whole, seconds = divmod(seconds, length)
            parts.append(f"{whole:.0f} {unit}")
    if seconds or not parts:
        parts.append(f"{seconds:.10g} s")
    return " ".join(parts)


def age(since: datetime | None, now: datetime) -> str:
    """How long something has lasted, in whole seconds at least: an age of 5.3 s is `5 s`.

    Clocks that differ a little are at `0 s`.
    """
    return UNKNOWN if since is None else duration((now - since) // timedelta(seconds=1))


def ago(moment: datetime, now: datetime) -> str:
    """How long before or after `now` a moment is: `3 min ago`, `in 2 h 05 min`, `now`."""
    whole = age(min(moment, now), max(moment, now))
    if whole == "0 s":
        return "now"
    return f"{whole} ago" if moment < now else f"in {whole}"


def milliseconds(seconds: float | None) -> str:
    """A latency: `0.4 ms`, `340 ms`, `1,200 ms`."""
    if seconds is None:
        return UNKNOWN
    value = seconds * 1000
    return f"{value:.1f} ms" if value < 10 else f"{value:,.0f} ms"


def count(value: float | None) -> str:
    """A count, thousands apart: `1,204`."""
    if value is None:
        return UNKNOWN
    return f"{value:,}" if isinstance(value, int) else f"{value:,.0f}"


def number(value: float | None) -> str:
    """A quantity, thousands apart; what is not whole with at most three digits: `0.313`."""
    if value is None or isinstance(value, int) or value.is_integer():
        return count(value)
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def plural(value: int | None, one: str, many: str | None = None) -> str:
    """A count with its noun: `1 lease`, `1,204 leases`."""
    return f"{count(value)} {one if value == 1 else many or one + 's'}"


def percent(part: float, whole: float) -> str:
    """A share in whole per cent; of nothing, unknown."""
    return f"{100 * part / whole:.0f} %" if whole else UNKNOWN


def size(byte_count: int | None) -> str:
    """Bytes in their largest unit: `512 B`, `1.5 KiB`, `24 GiB`."""
    if byte_count is None:
        return UNKNOWN
    for length, unit in _BYTE_UNITS:
        if byte_count >= length:
            return f"{number(byte_count / length)} {unit}"
    return f"{byte_count} B"


def memory(mib: int | None) -> str:
    """Memory counted in MiB: `512 MiB`, `1.5 TiB`; `0` for none."""
    if not mib:
        return UNKNOWN if mib is None else "0"
    return size(mib * 2**20)
