"""What is done with lanes of limits: closed for a while, opened, given another weight."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any
from urllib.parse import quote, unquote

from hwqueue.client import AsyncClient
from hwqueue.dashboard.action import Action, Fields, Question
from hwqueue.dashboard.reads import Reads
from hwqueue.errors import BadArgument
from hwqueue.text import exact_duration

# for how long a lane is closed, by how many seconds that is
SPANS = {str(span): exact_duration(timedelta(seconds=span)) for span in (30, 60, 300, 900, 3600, 14400)}


def lane_named(limit: str, tenant: str, key: str) -> str:
    """A lane in an address: `openai`, or of a key `per_user/acme/u42`."""
    parts = (limit, tenant, key) if tenant or key else (limit,)
    return "/".join(quote(part, safe="") for part in parts)


def lane_of(subject: str) -> tuple[str, str | None, str | None]:
    """The limit, the tenant and the key of a lane; None: the limit has one lane. Raises: BadArgument."""
    match [unquote(part) for part in subject.split("/")]:
        case [limit]:
            return limit, None, None
        case [limit, tenant, key]:
            return limit, tenant, key
    raise BadArgument(f"{subject[:100]!r} is no lane", hint="see the page of its limit")


async def _find(source: Reads, subject: str) -> str:
    """What a lane is called. Raises: LimitUnknown, BadArgument."""
    name, tenant, key = lane_of(subject)
    limit = await source.limit(name)
    if key is None:
        return f"limit {name}"
    whose = f" of {tenant}" if tenant and limit.spec.get("by") == "key" else ""
    return f"{limit.spec.get('by', 'key')} {key}{whose} in limit {name}"


def _asks(button: str, what: str, fields: tuple[str, ...] = ()) -> Callable[[str], Question]:
    return lambda lane: Question(f"{button} {lane}?", (what,), button, fields)


async def _throttle(client: AsyncClient, subject: str, fields: Fields) -> None:
    limit, tenant, key = lane_of(subject)
    span = fields.get("span", "")
    if span not in SPANS:
        raise BadArgument(f"{span[:20]!r} is no span", hint="choose one of the list")
    await client.throttle_limit(limit, key, tenant=tenant, retry_after=timedelta(seconds=int(span)))


async def _open(client: AsyncClient, subject: str, _: Fields) -> None:
    limit, tenant, key = lane_of(subject)
    await client.throttle_limit(limit, key, tenant=tenant)


async def _weigh(client: AsyncClient, subject: str, fields: Fields) -> None:
    limit, _, key = lane_of(subject)
    text = fields.get("weight", "").strip()
    try:
        weight = float(text)
    except ValueError:
        weight = math.nan
    if not math.isfinite(weight):
        raise BadArgument(f"{text[:20]!r} is no number", hint="a weight is from 0.01 to 1000")
    await client.set_limit(limit, {"weights": {key or "": weight}})


ACTIONS: Mapping[str, Action[Any]] = {
    "throttle": Action(
        "lane",
        _find,
        _asks("Throttle", "Nothing passes until then. What has passed may still start.", ("span",)),
        _throttle,
        "Closed for a while: nothing passes.",
    ),
    "unthrottle": Action(
        "lane",
        _find,
        _asks("Open", "What waits passes as soon as the limit allows."),
        _open,
        "Open again.",
    ),
    "weigh": Action(
        "lane",
        _find,
        _asks("Weigh", "Turns are taken in proportion to weights.", ("weight",)),
        _weigh,
        "It has another weight.",
        is_for_admins=True,
    ),
}
