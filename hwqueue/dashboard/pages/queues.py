"""Queues: all of them, and one."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from hwqueue.alike import alike
from hwqueue.dashboard.auth import protected
from hwqueue.dashboard.charts import buckets
from hwqueue.dashboard.pages.asked import one_of
from hwqueue.dashboard.pages.pending import worst
from hwqueue.dashboard.reads import reads
from hwqueue.dashboard.render import page
from hwqueue.errors import QueueUnknown
from hwqueue.types import Minute, QueueDepth

SORTS = ("worst", "queue", "pending", "scheduled", "running", "oldest")
MEASURED = 20  # queues whose last hour is read for the list; the others have it on their own pages
SHOWN_CLASSES, SHOWN_EVENTS, READ_EVENTS = 10, 10, 200
RECENT = 5  # minutes


@dataclass(frozen=True, slots=True)
class Hour:
    """A queue's last hour: ended in each minute, and how long leases waited in the last five."""

    completed: Sequence[float]
    failed: int
    wait_p95: float | None

    @property
    def rate(self) -> float:
        """Completed a minute, over the last five."""
        recent = self.completed[-RECENT:]
        return sum(recent) / len(recent) if recent else 0.0


def hour_of(minutes: Sequence[Minute]) -> Hour:
    """What became of it; the last minute is not over."""
    whole = minutes[:-1]
    waits = [minute.wait_p95 for minute in whole[-RECENT:] if minute.wait_p95 is not None]
    failed = sum(minute.failed for minute in minutes)
    return Hour([float(minute.completed) for minute in whole], failed, max(waits, default=None))


def worst_queue(row: QueueDepth) -> tuple[bool, bool, float, int, str]:
    """Sorts what hurts most first: claims that nobody ends, paused with work, then by wait."""
    oldest = row.oldest_at.timestamp() if row.oldest_at else math.inf
    return not row.expired, not (row.paused_at and row.pending), oldest, -row.pending, row.queue


@protected("/queues")
async def queues(request: Request) -> Response:
    """Every queue, how much is in it and how long that waits; and what tasks ask by default."""
    source = reads(request)
    cached, tasks = await asyncio.gather(source.queues(), source.tasks())
    sort = one_of(request, "sort", SORTS, "worst")
    rows = sorted(cached.value, key=lambda row: row.queue)
    if sort == "worst":
        rows.sort(key=worst_queue)
    elif sort == "oldest":
        rows.sort(key=lambda row: (row.oldest_at is None, row.oldest_at))
    elif sort != "queue":
        rows.sort(key=lambda row: -getattr(row, sort))
    measured = [row.queue for row in rows[:MEASURED]]
    minutes = await asyncio.gather(*(source.throughput(name) for name in measured))
    return page(
        request,
        "queues.html",
        "Queues",
        read=[cached, tasks, *minutes],
        rows=rows,
        hours={name: hour_of(each.value) for name, each in zip(measured, minutes, strict=True)},
        tasks=tasks.value,
        sort=sort,
        query={},
    )


@protected("/queues/{queue:path}")
async def queue(request: Request) -> Response:
    """One queue: its last hour, its policy, and what of it is pending and why."""
    name = request.path_params["queue"]
    source = reads(request)
    depth = await source.queues()
    row = next((each for each in depth.value if each.queue == name), None)
    if row is None:
        raise QueueUnknown(f"no queue is named {name[:100]!r}", hint="see the list of queues")
    # side by side: each counts leases
    minutes, pending, policy, limits, events = await asyncio.gather(
        source.throughput(name),
        source.pending(name, "pending"),
        source.queue(name),
        source.limits(),
        source.events(queue=name, limit=READ_EVENTS),
    )
    metrics = await source.metrics()
    return page(
        request,
        "queue.html",
        f"Queue {name}",
        read=[depth, minutes, pending, limits],
        charts=True,
        row=row,
        minutes=minutes.value,
        policy=policy.policy,
        waits=buckets(metrics.value, "hwqueue_wait_seconds", name),
        limits=[each for each in limits.value if name in each.queues],
        classes=sorted(alike(pending.value), key=lambda each: worst(each.row))[:SHOWN_CLASSES],
        events=events,
        shown_events=SHOWN_EVENTS,
    )
