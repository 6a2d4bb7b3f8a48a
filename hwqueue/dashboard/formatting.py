"""How numbers, times and ids are written on the pages. What is unknown is a dash, never a zero."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

UNKNOWN = "-"
_SPANS = ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s"))
_MIB_UNITS = ((1024 * 1024, "TiB"), (1024, "GiB"), (1, "MiB"))
_BYTE_UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"))
_RESOURCES = {"cpu_milli": "cores", "memory_mib": "memory", "gpu": "GPU", "gpu_milli": "GPU share"}
# The states of a lease: the word on the page, the glyph, the class of the colour.
STATES: Mapping[str, tuple[str, str]] = {
    "scheduled": ("clock", "s-scheduled"),
    "pending": ("hourglass", "s-pending"),
    "claimed": ("play", "s-claimed"),
    "completed": ("tick", "s-completed"),
    "failed": ("cross", "s-failed"),
    "cancelled": ("dash", "s-cancelled"),
    "no match": ("barred", "s-no-match"),
    "live": ("tick", "s-live"),
    "cordoned": ("barred", "s-cordoned"),
    "draining": ("clock", "s-draining"),
    "silent": ("cross", "s-silent"),
    "paused": ("pause", "s-cancelled"),
    "open": ("play", "s-completed"),
    "released": ("dash", "s-cancelled"),
    "expired": ("cross", "s-failed"),
    "superseded": ("cross", "s-failed"),
    "preempted": ("cross", "s-failed"),
}
_SPAN_SETTINGS = {
    *("claim_timeout", "heartbeat_interval", "poll_interval", "patience", "ageing_step"),
    *("reap_grace", "retain_completed", "retain_failed"),
}
_MASKED = ("password", "passwd", "secret", "token", "api_key", "apikey", "authorization", "private")


def number(value: float | None) -> str:
    """Thousands apart; whole numbers whole, others with at most three digits."""
    if value is None:
        return UNKNOWN
    if isinstance(value, int) or float(value).is_integer():
        return f"{int(value):,}"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def percent(part: float, whole: float) -> str:
    """A share in whole per cent; of nothing, unknown."""
    return f"{100 * part / whole:.0f} %" if whole else UNKNOWN


def span(value: timedelta | float | None) -> str:
    """A span such as `340 ms`, `4.2 s`, `1 m 04 s`, `3 h 20 m`, `2 d 04 h`."""
    if value is None:
        return UNKNOWN
    seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    if seconds < 0:
        return f"-{span(-seconds)}"
    if 0 < seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.0f} s" if seconds >= 10 or seconds.is_integer() else f"{seconds:.1f} s"
    for length, unit, part, small in _SPANS:
        if seconds >= length:
            whole, rest = divmod(int(seconds), length)
            return f"{whole} {unit} {rest // part:02} {small}"
    return UNKNOWN


def ago(value: datetime, now: datetime) -> str:
    """How long before (or after) `now`, in its largest unit: `3 min ago`, `in 2 h`."""
    seconds = (now - value).total_seconds()
    size = abs(seconds)
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        if size >= length:
            text = f"{math.floor(size / length)} {unit}"
            return f"{text} ago" if seconds > 0 else f"in {text}"
    return "now"


def absolute(value: datetime) -> str:
    """A time in UTC, to the second."""
    return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def exact(value: datetime) -> str:
    """A time in UTC, to the thousandth of a second."""
    return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S.%f}"[:-3] + " UTC"


def iso(value: datetime) -> str:
    """A time for machines."""
    return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def natural(text: str) -> list[tuple[int, str]]:
    """A sort key by which `n-9` comes before `n-10`."""
    return [
        (int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", text)
    ]


def short(value: object) -> str:
    """The end of an id, which is what tells ids of one minute apart."""
    text = str(value)
    return f"…{text[-8:]}" if len(text) > 12 else text


def size(value: int | None) -> str:
    """Bytes."""
    if value is None:
        return UNKNOWN
    for length, unit in _BYTE_UNITS:
        if value >= length:
            return f"{value / length:.3g} {unit}"
    return f"{value} B"


def policy(key: str, value: Any) -> str:
    """A setting of a queue: spans and sizes in their units."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {member}" for name, member in value.items())
    if key.endswith("_bytes"):
        return size(value)
    return span(value) if key in _SPAN_SETTINGS else str(value)


def memory(mib: int | None) -> str:
    """Memory given in MiB."""
    if mib is None:
        return UNKNOWN
    for length, unit in _MIB_UNITS:
        if mib >= length:
            return f"{number(mib / length)} {unit}"
    return "0"


def cores(milli: int | None) -> str:
    """Processor time given in thousandths of a core."""
    return UNKNOWN if milli is None else number(milli / 1000)


def amount(resource: str, value: int) -> str:
    """An amount of a resource in its own unit."""
    if resource == "cpu_milli":
        return cores(value)
    return memory(value) if resource == "memory_mib" else number(value)


def resource(name: str) -> str:
    """The name of a resource as people say it."""
    return _RESOURCES.get(name, name)


def asks(resources: Mapping[str, int]) -> str:
    """What a lease asks for: `2 GPU, 8 cores, memory 32 GiB`."""
    parts = []
    for name, value in sorted(resources.items(), key=lambda item: not item[0].startswith("gpu")):
        if name == "memory_mib":
            parts.append(memory(value))
        elif name == "gpu_milli":
            parts.append(f"{number(value / 1000)} GPU")
        else:
            parts.append(f"{amount(name, value)} {resource(name)}")
    return ", ".join(parts)


def plural(count: int | None, one: str, many: str | None = None) -> str:
    """A count with its noun."""
    return f"{number(count)} {one if count == 1 else many or one + 's'}"


def pretty(value: Any) -> str:
    """JSON to read, with what looks like a secret by its key left out."""
    plain = asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
    text = json.dumps(_without_secrets(plain), indent=2, ensure_ascii=False, default=str)
    limit = 64 * 1024
    return text if len(text) <= limit else f"{text[:limit]}\n… ({size(len(text))} in all)"


def _without_secrets(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            key: _hidden(member) if _is_secret(key) else _without_secrets(member)
            for key, member in value.items()
        }
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_without_secrets(member) for member in value]
    return value


def _hidden(value: Any) -> str:
    return f"(hidden, {size(len(str(value)))})"


def _is_secret(key: object) -> bool:
    return any(word in str(key).lower() for word in _MASKED)


def error_line(error: Any) -> str:
    """The first line of what went wrong; workers keep it under `message` or `type`."""
    if error is None:
        return ""
    if isinstance(error, Mapping):
        kind = error.get("type") or error.get("code") or error.get("reason")
        message = error.get("message") or error.get("detail")
        text = f"{kind}: {message}" if kind and message else message or kind or pretty(error)
    else:
        text = error
    return str(text).strip().partition("\n")[0][:300]


def glyph(state: str) -> str:
    """The glyph of a state."""
    return STATES.get(state, ("dash", ""))[0]


def tone(state: str) -> str:
    """The CSS class that colours a state."""
    return STATES.get(state, ("", "s-cancelled"))[1]
