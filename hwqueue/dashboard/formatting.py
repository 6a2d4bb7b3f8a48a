"""How times, ids, resources, settings and errors are written on the pages; see `hwqueue.text`."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from markupsafe import Markup, escape

from hwqueue import asked as words
from hwqueue import error_text
from hwqueue.client._spawn import POLICY_SPANS
from hwqueue.text import UNKNOWN, exact_duration, memory, number, size

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
    "tier_preempted": ("cross", "s-failed"),
    "running": ("play", "s-claimed"),
    "waiting": ("dots", "s-waiting"),
    "skipped": ("skip", "s-cancelled"),
    "failing": ("cross", "s-failed"),
    "cancelling": ("dash", "s-cancelled"),
    "earmarked": ("hourglass", "s-scheduled"),
    "reserved": ("clock", "s-scheduled"),
    "stopping": ("pause", "s-cancelled"),
}
_CORE = 90  # characters
_ID = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
_MASKED = ("password", "passwd", "secret", "token", "api_key", "apikey", "authorization", "private")


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
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", text)]


def short(value: object) -> str:
    """The end of an id, which is what tells ids of one minute apart."""
    text = str(value)
    return f"…{text[-8:]}" if len(text) > 12 else text


def policy(key: str, value: Any) -> str:
    """A setting of a queue: durations and sizes in their units."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {policy(name, member)}" for name, member in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if key.endswith("_bytes"):
        return size(value)
    return exact_duration(timedelta(seconds=value)) if key in POLICY_SPANS else str(value)


def reason_words(message: str) -> str:
    """Why a class does not run, without what its glyph says: `most lack zone in z5`."""
    return message.removeprefix("no live node can run it: ")


def core(text: str) -> str:
    """The first part of a sentence, for a cell: up to a semicolon, or about 90 characters of it."""
    first = text.partition("; ")[0]
    return first if len(first) <= _CORE else first[:_CORE].rsplit(" ", 1)[0].rstrip(",:") + " …"


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


def asked(
    placement: Mapping[str, Any] | None, came_from: Mapping[str, Any] | None
) -> list[tuple[str, list[str]]]:
    """What a step asks of its node, and who asks: see `hwqueue.asked.asked`."""
    return words.asked(placement, came_from, lambda name, value: asks({name: value}))


def pretty(value: Any) -> str:
    """JSON to read, with what looks like a secret by its key left out."""
    plain = asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
    text = json.dumps(_without_secrets(plain), indent=2, ensure_ascii=False, default=str)
    limit = 64 * 1024
    return text if len(text) <= limit else f"{text[:limit]}\n… ({size(len(text))} in all)"


def _without_secrets(value: Any) -> Any:
    if isinstance(value, Mapping):
        secret = {key for key in value if any(word in str(key).lower() for word in _MASKED)}
        return {
            key: f"(hidden, {size(len(str(member)))})" if key in secret else _without_secrets(member)
            for key, member in value.items()
        }
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_without_secrets(member) for member in value]
    return value


def error_line(error: Any, reason: str | None = None) -> str:
    """What went wrong, with the code beside it if there is one; secrets are left out."""
    return error_text.error_line(_without_secrets(error), reason)[:300]


def parked(count: int, most: int = 10_000) -> str:
    """How many leases wait; beyond most nobody has counted."""
    return number(count) if count <= most else f"more than {number(most)}"


def linked(text: str, leases: str) -> Markup:
    """A sentence in which ids of leases lead to their pages."""
    return Markup(_ID.sub(rf'<a href="{leases}/\g<0>">\g<0></a>', str(escape(text))))


def glyph(state: str) -> str:
    """The glyph of a state."""
    return STATES.get(state, ("dash", ""))[0]


def tone(state: str) -> str:
    """The CSS class that colours a state."""
    return STATES.get(state, ("", "s-cancelled"))[1]
