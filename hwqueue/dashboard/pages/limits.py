"""Limits: the list, worst first, and one with its keys."""

from __future__ import annotations

import asyncio
import math
from typing import Literal

from starlette.requests import Request
from starlette.responses import Response

from hwqueue.dashboard.auth import protected
from hwqueue.dashboard.limits import lane_named
from hwqueue.dashboard.pages.asked import number, one_of
from hwqueue.dashboard.reads import reads
from hwqueue.dashboard.render import page
from hwqueue.types import Limit

SHOWN, PAGE, LAST_PAGE = 10, 50, 198
ORDERS: dict[Literal["parked", "wait"], str] = {"parked": "Most parked", "wait": "Longest wait"}


def worst(limit: Limit) -> tuple[int, float, str]:
    """Sorts what most leases wait for first, then what one has waited longest for."""
    return -limit.parked, limit.oldest_at.timestamp() if limit.oldest_at else math.inf, limit.name


@protected("/limits")
async def limits(request: Request) -> Response:
    """Every limit: what is in use of it, what waits, and when it opens."""
    cached = await reads(request).limits()
    rows = sorted(cached.value, key=worst)
    return page(request, "limits.html", "Limits", read=[cached], rows=rows)


@protected("/limits/{limit:path}")
async def limit(request: Request) -> Response:
    """One limit, with the ten keys for which most leases wait, or longest; with an order all keys."""
    name, source = request.path_params["limit"], reads(request)
    row = await source.limit(name)
    order, at = one_of(request, "order", ORDERS), min(number(request), LAST_PAGE)
    asked = [each for each in ORDERS if order in ("", each)]
    size, most = (PAGE, (at + 1) * PAGE + 1) if order else (SHOWN, SHOWN)
    found = await asyncio.gather(*(source.limit_lanes(name, order=each, limit=most) for each in asked))
    start = at * PAGE if order else 0
    return page(
        request,
        "limit.html",
        f"Limit {name}",
        read=found,
        row=row,
        by=row.spec.get("by"),
        lists=[(each, lanes.value[start : start + size]) for each, lanes in zip(asked, found, strict=True)],
        more=len(found[0].value) > start + size,
        counted=100_000 // most,
        order=order,
        order_words=ORDERS,
        number=at,
        page_size=PAGE,
        lane_named=lane_named,
    )
