"""Why what is pending does not run: class by class, and one class; all classes that there are."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from hwqueue.alike import alike
from hwqueue.dashboard.auth import protected
from hwqueue.dashboard.charts import segments
from hwqueue.dashboard.ids import class_number
from hwqueue.dashboard.pages.asked import number, one_of, texts
from hwqueue.dashboard.reads import MOST_CLASSES, reads
from hwqueue.dashboard.render import page
from hwqueue.types import FunnelStage, PendingReason

PAGE = 50
KINDS = ("no match", "contended", "ready", "limit")
KIND_WORDS = {
    "no match": "no node matches",
    "contended": "nodes match, all are busy",
    "ready": "could run now, or waits its turn",
    "limit": "wait for a limit",
}
KIND_TONES = {
    "no match": "s-no-match",
    "contended": "s-pending",
    "ready": "s-claimed",
    "limit": "s-scheduled",
}
TEXT_FILTERS = ("queue", "tenant", "service", "asks")
CHUNK = 500  # that are sorted at a time


@dataclass(frozen=True, slots=True)
class Group:
    """Classes that wait for the same kind of reason, or agree in something else."""

    name: str
    leases: int
    classes: int
    oldest_at: datetime


def kind(row: PendingReason) -> str:
    """Which of the kinds of waiting this is; one that is not known is with what is busy."""
    if row.nodes_matching is None:
        return "limit"
    if row.nodes_matching == 0:
        return "no match"
    return "ready" if row.nodes_free and row.code != "queue_paused" else "contended"


def _gpus(row: PendingReason) -> float:
    return float(row.resources.get("gpu", 0)) + float(row.resources.get("gpu_milli", 0)) / 1000


def worst(row: PendingReason) -> tuple[int, int, datetime]:
    """Sorts what hurts most first: what no node may run, then what waits for room, by leases."""
    return KINDS.index(kind(row)), -row.pending, row.oldest_at


SORTS: dict[str, Callable[[PendingReason], Any]] = {
    "worst": worst,
    "oldest": lambda row: row.oldest_at,
    "pending": lambda row: -row.pending,
    "gpu": lambda row: -_gpus(row) * row.pending,
}


def grouped(rows: Iterable[PendingReason], key: Callable[[PendingReason], str]) -> list[Group]:
    """Rows summed up by a key, the most leases first."""
    groups: dict[str, list[PendingReason]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    made = [
        Group(name, sum(row.pending for row in members), len(members), min(row.oldest_at for row in members))
        for name, members in groups.items()
    ]
    return sorted(made, key=lambda group: (-group.leases, group.name))


def fits(row: PendingReason, filters: dict[str, str]) -> bool:
    """Whether a row is among those that are asked for."""
    return (
        filters["queue"] in ("", row.queue)
        and filters["tenant"] in ("", row.tenant)
        and filters["service"] in ("", str(row.service_id))
        and filters["asks"].lower() in f"{row.words or ''} {row.task_name}".lower()
    )


@protected("/pending")
async def pending(request: Request) -> Response:
    """Every class with something pending: what it asks, what is in its way, what would help."""
    asked = request.query_params
    filters, sort = texts(request, TEXT_FILTERS), one_of(request, "sort", SORTS, "worst")
    chosen, code = asked.get("kind", ""), asked.get("reason", "")
    at = number(request)
    source = reads(request)
    cached, nodes, queues = await asyncio.gather(
        source.pending(filters["queue"] or None, "oldest" if sort == "oldest" else "pending"),
        source.nodes(),
        source.queues(),
    )
    rows = [row for row in cached.value if fits(row, filters)]
    kinds = {group.name: group for group in grouped(rows, kind)}
    reasons = grouped(rows, lambda row: row.code or "ready")
    rows = [row for row in rows if chosen in ("", kind(row)) and code in ("", row.code or "ready")]
    classes = len(rows)
    merged = sorted(alike(rows), key=lambda each: (SORTS[sort](each.row), each.row.class_id))
    return page(
        request,
        "pending.html",
        "Pending",
        read=[cached, nodes, queues],
        rows=merged[at * PAGE : (at + 1) * PAGE],
        total=len(merged),
        classes=classes,
        is_cut=len(cached.value) >= MOST_CLASSES,
        most=MOST_CLASSES,
        leases=sum(each.row.pending for each in merged),
        number=at,
        page_size=PAGE,
        kinds=[kinds[name] for name in KINDS if name in kinds],
        shares=segments((name, kinds[name].leases) for name in KINDS if name in kinds),
        kind_tone=KIND_TONES,
        kind_words=KIND_WORDS,
        chosen=chosen,
        reasons=reasons,
        reason=code,
        filters=filters,
        query={"kind": chosen, "reason": code, "sort": sort, **filters},
        sort=sort,
        queues=[row.queue for row in queues.value],
        no_nodes=not nodes.value,
        live_nodes=sum(node.state == "live" for node in nodes.value),
    )


@protected("/pending/{class_id}")
async def placement_class(request: Request) -> Response:
    """One class: why its leases wait, and what would let them run."""
    cached = await reads(request).explain_class(class_number(request.path_params["class_id"]))
    why = cached.value
    return page(
        request,
        "class.html",
        "Why pending",
        read=[cached],
        live=10,
        why=why,
        oldest_at=min((each.eligible_at for each in why.leases), default=None),
        **why_context(),
    )


def why_context() -> dict[str, Any]:
    """What the explanation's template needs beside the explanation."""
    return {"stages": STAGES, "glyph_of": glyph_of, "funnel_rows": funnel_rows}


STAGES = {
    "live": "live",
    "cordon": "not cordoned",
    "served": "queue and task served",
    "tenant": "tenant admitted",
    "labels": "labels fit",
    "taints": "taints tolerated",
    "trust": "trusted",
    "isolation": "isolation offered",
    "capacity": "large enough",
    "free": "room now",
    "away": "others allow it",
    "spread": "spread allows it",
}


def glyph_of(code: str | None, matching: int | None) -> tuple[str, str, str]:
    """How a headline looks: glyph, colour, tone of its frame."""
    if code in (None, "ready", "waiting_for_preferred"):
        return "hourglass", "s-pending", ""
    if code == "queue_paused":
        return "pause", "s-pending", "warn"
    return ("barred", "s-no-match", "none") if matching == 0 else ("hourglass", "s-pending", "warn")


def funnel_rows(funnel: Sequence[FunnelStage], registered: int) -> list[tuple[str, int, int]]:
    """The funnel's rows: stage, nodes left after it, nodes lost at it."""
    rows, before = [], registered
    for stage in funnel:
        rows.append((stage.stage, stage.nodes, before - stage.nodes))
        before = stage.nodes
    return rows


@protected("/classes")
async def classes(request: Request) -> Response:
    """Classes, those with most leases first: what they ask, how much of the fleet suits."""
    queue = request.query_params.get("queue", "").strip()
    after, at = number(request, "after"), number(request)
    source = reads(request)
    queues = await source.queues()
    rows = await source.classes(queue=queue or None, after=after, limit=CHUNK + 1)
    last = rows[CHUNK - 1].class_id if len(rows) > CHUNK else None
    rows = sorted(rows[:CHUNK], key=lambda row: (-row.pending, -row.running, -row.class_id))
    return page(
        request,
        "classes.html",
        "Classes",
        live=10,
        rows=rows[at * PAGE : (at + 1) * PAGE],
        more=len(rows) > (at + 1) * PAGE,
        number=at,
        after=after,
        last=last,
        queue=queue,
        queues=[row.queue for row in queues.value],
    )
