"""The system: what is installed, what waits for reap, who has tokens."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from hwqueue.dashboard.auth import protected
from hwqueue.dashboard.reads import reads
from hwqueue.dashboard.render import page


@protected("/system")
async def system(request: Request) -> Response:
    """Versions, expired claims, tokens, and how the dashboard itself reads."""
    source = reads(request)
    cached, queues = await source.system(), await source.queues()
    return page(
        request,
        "system.html",
        "System",
        read=[cached, queues],
        live=10,
        schema=cached.value.schema,
        tokens=cached.value.tokens,
        expired=sum(row.expired for row in queues.value),
        stopping=sum(row.stopping for row in queues.value),
        timings=source.timings(),
    )
