"""Events: who did what, newest first."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from hwqueue.dashboard.door import seen
from hwqueue.dashboard.reads import reads, uuid_or_none
from hwqueue.dashboard.render import page
from hwqueue.errors import BadArgument

PAGE = 100
FILTERS = ("code", "queue", "node", "lease", "actor")


async def events(request: Request) -> Response:
    """What happened, a page at a time; the first page refreshes itself."""
    asked = request.query_params
    filters = {name: asked.get(name, "").strip() for name in FILTERS}
    before = asked.get("before", "")
    source = reads(request)
    names, queues = await source.node_names(), await source.queues()
    rows = await source.events(limit=PAGE + 1, **await _wanted(source, filters, before))
    return page(
        request,
        "events.html",
        "Events",
        live=0 if before else 5,
        rows=rows[:PAGE],
        more=len(rows) > PAGE,
        before=before,
        filters=filters,
        names=names.value,
        queues=[row.queue for row in queues.value],
    )


async def _wanted(source: Any, filters: dict[str, str], before: str) -> dict[str, Any]:
    """The filter as the client takes it. Raises: NodeUnknown, BadArgument."""
    wanted: dict[str, Any] = {
        name: filters[name] for name in ("code", "queue", "actor") if filters[name]
    }
    if filters["node"]:
        wanted["node_id"] = (await source.node(filters["node"])).node_id
    if filters["lease"]:
        wanted["lease_id"] = uuid_or_none(filters["lease"])
        if wanted["lease_id"] is None:
            raise BadArgument(f"{filters['lease'][:60]!r} is no lease id", hint="give all of it")
    if before.isdecimal():
        wanted["before"] = int(before)
    return wanted


ROUTES = [seen("/events", events)]
