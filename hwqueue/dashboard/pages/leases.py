"""Leases: the list and one lease."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from hwqueue.dashboard.auth import protected, viewer
from hwqueue.dashboard.by_filter import offered, wanted_of
from hwqueue.dashboard.cache import Cached
from hwqueue.dashboard.charts import life
from hwqueue.dashboard.formatting import error_line
from hwqueue.dashboard.ids import as_id, uuid_or_none
from hwqueue.dashboard.pages.asked import Listing
from hwqueue.dashboard.pages.pending import why_context
from hwqueue.dashboard.reads import reads
from hwqueue.dashboard.render import page
from hwqueue.types import LeaseState, LeaseSummary

SHOWN_LINES = 200
MOST_FAILURES, SHOWN_FAILURES, LONGEST = 500, 10, 160
TEXT_FILTERS = ("queue", "task", "tenant", "service", "node", "label", "error")


@dataclass(frozen=True, slots=True)
class Failure:
    """Leases of a task that failed with the same error."""

    error: str
    kind: str
    task: str
    leases: int
    last_at: datetime | None


def failures_of(rows: Sequence[LeaseSummary]) -> list[Failure]:
    """Leases that failed by their errors, the most first; each says what its newest one said."""
    groups: dict[tuple[str, str], list[LeaseSummary]] = defaultdict(list)
    for row in rows:
        kind = str(row.error.get("type") or "") if isinstance(row.error, Mapping) else ""
        groups[kind or error_line(row.error)[:LONGEST], row.task_name].append(row)
    made = []
    for (_, task), members in groups.items():
        first = members[0]
        kind = str(first.error.get("type") or "") if isinstance(first.error, Mapping) else ""
        last_at = max((row.finished_at for row in members if row.finished_at), default=None)
        made.append(Failure(error_line(first.error)[:LONGEST], kind, task, len(members), last_at))
    return sorted(made, key=lambda each: (-each.leases, each.task, each.error))


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
    by_error = None
    others = {name for name, text in listing.filters.items() if text} - {"queue"}
    if listing.state == "failed" and not others and not listing.paged:
        by_error = await source.failures(listing.filters["queue"] or None, MOST_FAILURES)
    return page(
        request,
        "leases.html",
        "Leases",
        read=[by_error] if by_error else [],
        by_error=failures_of(by_error.value)[:SHOWN_FAILURES] if by_error else [],
        most_failures=MOST_FAILURES,
        is_cut=by_error is not None and len(by_error.value) == MOST_FAILURES,
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
