"""The jump box: from an id or a name to its page."""

from __future__ import annotations

from contextlib import suppress

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from hwqueue.dashboard.auth import protected
from hwqueue.dashboard.ids import uuid_or_none
from hwqueue.dashboard.reads import reads
from hwqueue.dashboard.render import Links, page
from hwqueue.errors import GangNotFound, LeaseNotFound, RunNotFound

MOST = 20


@protected("/jump")
async def jump(request: Request) -> Response:
    """To the lease, run, gang, node, queue or tenant of that id or name; else to what is named like it."""
    text = request.query_params.get("q", "").strip()
    source, links = reads(request), Links(request)
    names = await source.node_names()
    queues = await source.queues()
    lease_id = uuid_or_none(text)
    if lease_id is not None:
        if lease_id in names.value:
            return RedirectResponse(links("nodes", names.value[lease_id]), 303)
        for place, find in (("leases", source.lease), ("runs", source.run), ("gangs", source.gang)):
            with suppress(LeaseNotFound, RunNotFound, GangNotFound):
                await find(lease_id)
                return RedirectResponse(links(place, lease_id), 303)
    nodes = [name for name in names.value.values() if text.lower() in name.lower()]
    found = [row.queue for row in queues.value if text.lower() in row.queue.lower()]
    if text in nodes or (len(nodes) == 1 and not found):
        return RedirectResponse(links("nodes", text if text in nodes else nodes[0]), 303)
    if text in found or (len(found) == 1 and not nodes):
        return RedirectResponse(links("queues", text if text in found else found[0]), 303)
    known = (row.tenant for row in (await source.tenants()).value if row.tenant and text)
    tenants = [name for name in known if text.lower() in name.lower()]
    if text in tenants or (len(tenants) == 1 and not nodes and not found):
        return RedirectResponse(links("tenants", text if text in tenants else tenants[0]), 303)
    return page(
        request,
        "jump.html",
        "Jump",
        live=0,
        text=text[:200],
        nodes=sorted(nodes)[:MOST] if text else [],
        queues=sorted(found)[:MOST] if text else [],
        tenants=sorted(tenants)[:MOST],
    )
