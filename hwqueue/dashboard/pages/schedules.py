"""Schedules: the list, and one with what fired, what comes, and what a backfill would fire."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice

from starlette.requests import Request
from starlette.responses import Response

from hwqueue.cron_times import spec_times, spec_words
from hwqueue.dashboard.auth import protected
from hwqueue.dashboard.pages.asked import texts
from hwqueue.dashboard.reads import reads
from hwqueue.dashboard.render import page
from hwqueue.errors import ScheduleInvalid
from hwqueue.types import FiredTime, Schedule

PAGE = 100
SHOWN_FIRES = 50
COMING = 5


@protected("/schedules")
async def schedules(request: Request) -> Response:
    """Schedules by name, a page at a time; of a page those first with which something is wrong."""
    after = request.query_params.get("after") or None
    rows = await reads(request).schedules(after=after, limit=PAGE + 1)
    shown = [(row, state_of(row)) for row in rows[:PAGE]]
    return page(
        request,
        "schedules.html",
        "Schedules",
        rows=sorted(shown, key=lambda each: (each[1] != "failed", each[0].name)),
        words={row.name: spec_words(row.name, row.spec) for row in rows},
        last=shown[-1][0].name if shown else "",
        more=len(rows) > PAGE,
        paged=after is not None,
        now=datetime.now(UTC),
    )


@protected("/schedules/{schedule:path}")
async def schedule(request: Request) -> Response:
    """One schedule; with `since` and `until` also which times a backfill of these would fire."""
    source = reads(request)
    row = await source.schedule(request.path_params["schedule"])
    asked = texts(request, ("since", "until"))
    preview: Sequence[FiredTime] | None = None
    subject = " ".join((*(each.replace(" ", "T") for each in asked.values()), row.name))
    if all(asked.values()):
        preview = await source.backfill(subject)
    now = datetime.now(UTC)
    return page(
        request,
        "schedule.html",
        f"Schedule {row.name}",
        live=0 if preview is not None else 5,
        row=row,
        state=state_of(row),
        words=spec_words(row.name, row.spec),
        spans={name: timedelta(seconds=row.spec[name]) for name in ("missed_window", "jitter")},
        coming=_coming(row, now),
        fires=await source.fires(row.name, limit=SHOWN_FIRES),
        asked=asked,
        preview=preview,
        wanted=sum(each.outcome == "would_spawn" for each in preview or ()),
        subject=subject,
        now=now,
    )


def state_of(row: Schedule) -> str:
    """What is shown of it: paused, failed (it spawns nothing), or open."""
    if row.paused_at is not None:
        return "paused"
    return "failed" if row.plan_error or row.is_dry or row.last_outcome == "failed" else "open"


def _coming(row: Schedule, now: datetime) -> list[datetime]:
    """The next times; none of one that is paused or that nobody can read."""
    try:
        return [] if row.paused_at else list(islice(spec_times(row.name, row.spec, now), COMING))
    except ScheduleInvalid:
        return []
