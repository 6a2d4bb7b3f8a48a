"""Leases: the list and one lease."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from hwqueue.dashboard.auth import protected, viewer
from hwqueue.dashboard.by_filter import offered, wanted_of
from hwqueue.dashboard.cache import Cached
from hwqueue.dashboard.charts import life
from hwqueue.dashboard.ids import as_id, uuid_or_none
from hwqueue.dashboard.pages.asked import Listing
from hwqueue.dashboard.pages.pending import why_context
from hwqueue.dashboard.reads import reads
from hwqueue.dashboard.render import page
from hwqueue.types import LeaseState

SHOWN_LINES = 200
TEXT_FILTERS = ("queue", "task", "tenant", "service", "node", "label", "error")


@protected("/leases")
async def leases(request: Request) -> Response:
    """Leases, newest first, a page at a time."""
    listing, source = Listing.of(request, list(LeaseState), TEXT_FILTERS), reads(request)
    nodes, queues = await source.node_names(), await source.queues()
    rows = await source.leases(
        listing.filters["queue"] or None,
        wanted_of(listing.wanted),
        node=listing.filters["node"] or None,
        before=uuid_or_none(request.query_params.get("before")),
        limit=listing.size + 1,
    )
    return page(
        request,
        "leases.html",
        "Leases",
        **listing.shown(rows),
        names=nodes.value,
        queues=[each.queue for each in queues.value],
        offered=offered(listing.wanted),
    )


@protected("/leases/{lease}")
async def lease(request: Request) -> Response:
    """One lease: its life, its attempts, what it asks and what it was given."""
    lease_id = as_id("lease", request.path_params["lease"])
    source = reads(request)
    names = await source.node_names()
    found = await source.lease(lease_id)
    saved = await source.lease_checkpoints(lease_id, limit=SHOWN_LINES)
    is_preempted = found.stop_reason == "tier_preempted"
    stops = await source.preemptions(lease_id=lease_id, limit=1) if is_preempted else []
    now = datetime.now(UTC)
    return page(
        request,
        "lease.html",
        f"Lease {lease_id}",
        lease=found,
        lanes=life(found, now),
        names=names.value,
        lines=await source.lease_logs(lease_id, last=True, limit=SHOWN_LINES),
        saved=saved,
        stop=next((each for each in stops if found.claimed_at and each.at >= found.claimed_at), None),
        wait=next((one for one in saved if one.is_suspended), None),
        events=await source.events(lease_id=lease_id, limit=50),
        now=now,
    )


@protected("/leases/{lease}/why")
async def why(request: Request) -> Response:
    """Why a lease is pending: loaded after its page, since it looks at the whole fleet."""
    lease_id = as_id("lease", request.path_params["lease"])
    source = reads(request)
    cached = await source.explain_lease(lease_id)
    read: list[Cached[Any]] = [cached]
    preemption = None
    if viewer(request).may_act and cached.value.state == "pending":
        policy = (await source.queue(cached.value.queue)).policy.get("preempt") or {}
        if policy.get("enabled"):
            read.append(preview := await source.preemption(lease_id))
            preemption = preview.value
    return page(
        request,
        "lease_why.html",
        "Why",
        read=read,
        live=0,
        why=cached.value,
        preemption=preemption,
        **why_context(),
    )
