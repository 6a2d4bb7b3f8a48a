"""Placement classes: all that exist, a page at a time."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from hwqueue.dashboard.auth import protected
from hwqueue.dashboard.reads import reads
from hwqueue.dashboard.render import page

PAGE = 50


async def classes(request: Request) -> Response:
    """Classes by id: what they ask, what of them waits and runs, how much of the fleet suits."""
    asked = request.query_params
    queue = asked.get("queue", "").strip()
    after = int(asked["after"]) if asked.get("after", "").isdecimal() else 0
    source = reads(request)
    queues = await source.queues()
    rows = await source.classes(queue or None, min(after, 2**63 - 1), PAGE + 1)
    return page(
        request,
        "classes.html",
        "Classes",
        live=10,
        rows=rows[:PAGE],
        more=len(rows) > PAGE,
        after=after,
        queue=queue,
        queues=[row.queue for row in queues.value],
    )


ROUTES = [protected("/classes", classes)]
