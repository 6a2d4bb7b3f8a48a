"""Queues: all of them, and one."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from hwqueue.dashboard.auth import protected
from hwqueue.dashboard.reads import reads
from hwqueue.dashboard.render import page
from hwqueue.errors import QueueUnknown

SORTS = ("queue", "pending", "scheduled", "running", "oldest")
SHOWN_CLASSES = 10


async def queues(request: Request) -> Response:
    """Every queue, how much is in it and how long that waits; and what tasks ask by default."""
    source = reads(request)
    cached, tasks = await asyncio.gather(source.queues(), source.tasks())
    sort = request.query_params.get("sort", "oldest")
    sort = sort if sort in SORTS else "oldest"
    rows = sorted(cached.value, key=lambda row: row.queue)
    if sort == "oldest":
        rows.sort(key=lambda row: (row.oldest_at is None, row.oldest_at))
    elif sort != "queue":
        rows.sort(key=lambda row: -getattr(row, sort))
    return page(
        request,
        "queues.html",
        "Queues",
        read=[cached, tasks],
        rows=rows,
        tasks=tasks.value,
        sort=sort,
        query={},
    )


async def queue(request: Request) -> Response:
    """One queue: its last hour, its policy, and what of it is pending and why."""
    name = request.path_params["queue"]
    source = reads(request)
    depth = await source.queues()
    row = next((each for each in depth.value if each.queue == name), None)
    if row is None:
        raise QueueUnknown(f"no queue is named {name[:100]!r}", hint="see the list of queues")
    # side by side: each counts leases
    minutes, pending, policy, events = await asyncio.gather(
        source.throughput(name),
        source.pending(name),
        source.queue(name),
        source.events(queue=name, limit=10),
    )
    return page(
        request,
        "queue.html",
        f"Queue {name}",
        read=[depth, minutes, pending],
        charts=True,
        row=row,
        minutes=minutes.value,
        policy=policy.policy,
        classes=pending.value[:SHOWN_CLASSES],
        events=events,
    )


ROUTES = [protected("/queues", queues), protected("/queues/{queue:path}", queue)]
