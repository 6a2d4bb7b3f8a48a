"""The system: what is installed, what waits for reap, who has tokens; webhooks."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from hwqueue.dashboard.auth import protected
from hwqueue.dashboard.pages.asked import one_of
from hwqueue.dashboard.reads import reads
from hwqueue.dashboard.render import page

SHOWN_DELIVERIES = 50
STATES = ("waiting", "delivered", "dead")


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


@protected("/webhooks")
async def webhooks(request: Request) -> Response:
    """Every webhook, what it is told of and how that goes."""
    cached = await reads(request).webhooks()
    rows = sorted(
        cached.value,
        key=lambda row: (not (row.failing_since or row.paused_at), -row.dead, -row.waiting, row.name),
    )
    return page(request, "webhooks.html", "Webhooks", read=[cached], rows=rows)


@protected("/webhooks/{webhook}")
async def webhook(request: Request) -> Response:
    """One webhook and its last deliveries, or those in one state."""
    source = reads(request)
    row = await source.webhook(request.path_params["webhook"])
    state = one_of(request, "state", STATES) or None
    return page(
        request,
        "webhook.html",
        f"Webhook {row.name}",
        row=row,
        state=state,
        states=STATES,
        deliveries=await source.deliveries(row.name, state=state, limit=SHOWN_DELIVERIES),
    )
