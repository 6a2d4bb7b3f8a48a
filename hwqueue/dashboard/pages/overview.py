"""The first page: is there something to do, and where."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from hwqueue.alike import alike
from hwqueue.dashboard import formatting
from hwqueue.dashboard.auth import protected
from hwqueue.dashboard.history import SHOWN_MODELS, all_gpus, supply_of, waits_chart
from hwqueue.dashboard.pages.fleet import rack_of, use_of
from hwqueue.dashboard.pages.pending import kind, worst
from hwqueue.dashboard.pages.queues import worst_queue
from hwqueue.dashboard.reads import reads
from hwqueue.dashboard.render import page
from hwqueue.dashboard.standing import concerns, look
from hwqueue.types import Minute, NodeUsage

SHOWN_CLASSES, SHOWN_QUEUES, SHOWN_EVENTS = 5, 8, 10
READ_EVENTS = 200  # of which many may be about one task
RECENT_MINUTES = 5
# Events that somebody may have to act on, or has caused; what a drain does to each claim is noise.
NOTABLE = (
    *("class_unmatched", "class_unmatched_over", "lease_failed", "lease_deadline_exceeded"),
    *("claim_expired", "node_silent", "node_back", "node_superseded", "node_deregistered"),
    *("node_cordoned", "node_uncordoned", "node_drained", "node_tainted", "node_untainted"),
    *("queue_paused", "queue_resumed", "queue_dropped", "lease_cancelled", "lease_requeued"),
    *("schema_upgraded", "generation_raised", "positions_repaired", "node_attestation_revoked"),
)


@dataclass(frozen=True, slots=True)
class Rack:
    """A group of nodes as one cell: how many, how full, how many of them are not live."""

    name: str
    nodes: int
    use: int
    away: int


def rate(minutes: Sequence[Minute], name: str) -> float:
    """How many a minute over the last whole minutes."""
    recent = [getattr(minute, name) for minute in minutes[:-1]][-RECENT_MINUTES:]
    return sum(recent) / len(recent) if recent else 0.0


def racks(fleet: Sequence[NodeUsage]) -> list[Rack]:
    """The fleet with a cell for each rack."""
    groups: dict[str, list[NodeUsage]] = defaultdict(list)
    for row in fleet:
        groups[rack_of(row)].append(row)
    return [
        Rack(
            name,
            len(members),
            round(sum(map(use_of, members)) / len(members)),
            sum(row.state != "live" for row in members),
        )
        for name, members in sorted(groups.items(), key=lambda item: formatting.natural(item[0]))
    ]


@protected("/")
async def overview(request: Request) -> Response:
    """What needs somebody, six numbers, the last hour, what cannot run anywhere, and the fleet."""
    source = reads(request)
    # concurrently: with cached values the page waits as long as for one of them
    queues, pending, nodes, minutes, events = await asyncio.gather(
        source.queues(),
        source.pending(order="pending"),
        source.nodes(),
        source.throughput(),
        source.notable(NOTABLE, READ_EVENTS),
    )
    gpus, waits = await asyncio.gather(source.history("gpus", 180), source.history("waits", 180))
    supply = supply_of(gpus.value)
    fleet = nodes.value
    stands = request.app.state.standing = await look(source)
    open_queues = sorted(queues.value, key=worst_queue)
    unmet = alike(row for row in pending.value if kind(row) != "ready")
    unmet.sort(key=lambda each: worst(each.row))
    states = Counter(row.state for row in fleet)
    return page(
        request,
        "overview.html",
        "Overview",
        read=[queues, pending, nodes, minutes, events, gpus, waits],
        charts=True,
        concerns=concerns(queues.value, pending.value, fleet),
        alarms=stands.alarms,
        counts_of=stands.counts,
        is_empty=not queues.value,
        pending_leases=sum(row.pending for row in queues.value),
        oldest_at=min((row.oldest_at for row in queues.value if row.oldest_at), default=None),
        running=sum(row.running for row in queues.value),
        minutes=minutes.value,
        completed=rate(minutes.value, "completed"),
        failed=rate(minutes.value, "failed"),
        series={
            name: [float(getattr(minute, name)) for minute in minutes.value[:-1]]
            for name in ("completed", "failed", "claims")
        },
        claims=rate(minutes.value, "claims") / 60,
        live=5,
        states=states,
        nodes=len(fleet),
        gpus=sum(row.gpus for row in fleet),
        gpus_used=sum(row.gpu_milli_used for row in fleet) / 1000,
        classes=unmet[:SHOWN_CLASSES],
        unmet=sum(each.classes for each in unmet),
        queues=open_queues[:SHOWN_QUEUES],
        all_queues=len(open_queues),
        racks=racks(fleet),
        supply=supply[:SHOWN_MODELS],
        models=len(supply),
        most_gpus=max((max(row.used + row.free, row.asked) for row in supply), default=0),
        over_time=[chart for chart in (all_gpus(gpus.value), waits_chart(waits.value)) if chart],
        events=events.value,
        shown_events=SHOWN_EVENTS,
    )


@protected("/standing")
async def standing(request: Request) -> Response:
    """The tabs with their counts, and the banner: loaded after each page, and again with it."""
    stands = request.app.state.standing = await look(reads(request))
    at = request.query_params.get("at", "")[:20]
    return page(
        request, "standing.html", "Tabs", live=0, here=at, alarms=stands.alarms, counts_of=stands.counts
    )
