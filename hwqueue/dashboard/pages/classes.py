"""Placement classes: all that exist, a page at a time."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from hwqueue.dashboard.auth import protected
from hwqueue.dashboard.pages.asked import number
from hwqueue.dashboard.reads import reads
from hwqueue.dashboard.render import page

PAGE = 50
CHUNK = 500  # that are sorted at a time


@protected("/classes")
async def classes(request: Request) -> Response:
    """Classes, those with most leases first: what they ask, how much of the fleet suits."""
    queue = request.query_params.get("queue", "").strip()
    after, at = number(request, "after"), number(request)
    source = reads(request)
    queues = await source.queues()
    rows = await source.classes(queue=queue or None, after=after, limit=CHUNK + 1)
    last = rows[CHUNK - 1].class_id if len(rows) > CHUNK else None
    rows = sorted(rows[:CHUNK], key=lambda row: (-row.pending, -row.running, -row.class_id))
    return page(
        request,
        "classes.html",
        "Classes",
        live=10,
        rows=rows[at * PAGE : (at + 1) * PAGE],
        more=len(rows) > (at + 1) * PAGE,
        number=at,
        after=after,
        last=last,
        queue=queue,
        queues=[row.queue for row in queues.value],
    )
