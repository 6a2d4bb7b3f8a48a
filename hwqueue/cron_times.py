"""Which times a schedule has. Those of cron expressions are cronsim's, which follows Debian's cron.

A time that the clocks leave out is at the end of the gap, one that they repeat is once, the first;
but `*` in minutes or hours follows real time: of these cronsim may leave some out on the two days
on which the clocks of Lord Howe Island move by half an hour.

`H` is a value that the schedule's name decides, so that not all nightly jobs begin at once:
`H 2 * * *`, `H/15 * * * *`, `H(0-29) 3 * * *`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta, tzinfo
from hashlib import sha256
from itertools import islice
from math import ceil
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from hwqueue.errors import BadArgument, ScheduleInvalid
from hwqueue.text import exact_duration, plural
from hwqueue.types import DuePlan, Timing

MOST_TIMES = 1000
"""The most that a backfill fires in a call."""

_COMING = 64
_AHEAD = timedelta(days=400)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_HASHED = re.compile(r"(?<![A-Z])H(?:\((\d+)-(\d+)\))?(?:/(\d+))?(?![A-Z])")
_RANGES = ((0, 59), (0, 23), (1, 28), (1, 12), (0, 6))
"""Of the values that `H` may have: minute, hour, day of month (one that each has), month, weekday."""


def cron(
    expr: str,
    *,
    zone: str = "UTC",
    missed: str | None = None,
    missed_window: timedelta | None = None,
    overlap: str | None = None,
    jitter: timedelta | None = None,
    params: Mapping[str, Any] | None = None,
) -> Timing:
    """At the times of a cron expression: `cron("0 2 * * *", zone="Europe/Berlin")`.

    Args:
        expr: Minute, hour, day of month, month, day of week.
        zone: An IANA time zone.
        missed, missed_window, overlap, jitter, params: See `hwqueue.types.Timing`.

    Raises: ScheduleInvalid.
    """
    check_cron(expr, zone)
    return Timing(
        cron=expr,
        zone=zone,
        missed=missed,
        missed_window=missed_window,
        overlap=overlap,
        jitter=jitter,
        params=params,
    )


def every(
    span: timedelta,
    *,
    starts_at: datetime | None = None,
    missed: str | None = None,
    missed_window: timedelta | None = None,
    overlap: str | None = None,
    jitter: timedelta | None = None,
    params: Mapping[str, Any] | None = None,
) -> Timing:
    """Once in a span, 10 seconds or more: `every(timedelta(minutes=5))`.

    Args:
        starts_at: From when it is counted; None: 1970, never from the start of a process.
        missed, missed_window, overlap, jitter, params: See `hwqueue.types.Timing`.
    """
    return Timing(
        every=span,
        starts_at=starts_at,
        missed=missed,
        missed_window=missed_window,
        overlap=overlap,
        jitter=jitter,
        params=params,
    )


def check_cron(expr: str, zone: str = "UTC", name: str = "") -> None:
    """Refuse an expression without times. Raises: ScheduleInvalid."""
    if next(cron_times(expr, zone, name, datetime.now(UTC)), None) is None:
        raise _refused(expr, "has no times")


def cron_times(expr: str, zone: str, name: str, after: datetime) -> Iterator[datetime]:
    """The times of an expression after `after`, in UTC, each once; none for 50 years ends them.

    Raises: ScheduleInvalid.
    """
    try:
        local: tzinfo = UTC if zone == "UTC" else ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise ScheduleInvalid(
            f"no time zone is named {zone!r}", detail={"field": "zone"}, hint='such as "Europe/Berlin"'
        ) from error
    try:
        found = CronSim(_unhashed(expr, name), after.astimezone(local))
    except (CronSimError, ValueError, OverflowError) as error:  # the latter: too many digits, year 9999
        raise _refused(expr, f"is no cron expression: {str(error).lower()}") from error
    return _rising(found, after)


def plan(due: DuePlan) -> list[datetime]:
    """What `plan_schedule` is handed: times that are due, and those to come.

    Of these 64 in the next 400 days, two at least. Raises: ScheduleInvalid.
    """
    times: list[datetime] = []
    coming = 0
    for at in cron_times(due.cron, due.zone, due.name, due.from_at):
        times.append(at)
        coming += at > due.now
        if coming == _COMING or (coming >= 2 and at > due.now + _AHEAD):
            break
    if not coming:
        raise _refused(due.cron, "has no times to come")
    return times


def spec_words(name: str, spec: Mapping[str, Any]) -> str:
    """When a schedule fires, for people: `At 02:00 every day, Europe/Berlin`."""
    if "cron" in spec:
        with suppress(CronSimError, ScheduleInvalid):
            words = CronSim(_unhashed(spec["cron"], name), datetime.now(UTC)).explain()
            return words if spec["zone"] == "UTC" else f"{words}, {spec['zone']}"
        return f"{spec['cron']} {spec['zone']}"
    if "every" in spec:
        return f"Every {exact_duration(timedelta(seconds=spec['every']))}"
    return f"At {plural(len(spec['times']), 'time')}"


def times_between(name: str, spec: Mapping[str, Any], since: datetime, until: datetime) -> list[datetime]:
    """The times of a schedule from `since` to before `until`: what a backfill of that time fires.

    Args:
        spec: As `list_schedules` returns it.

    Raises: ScheduleInvalid; BadArgument if there are more than 1,000.
    """
    since = max(since, _EPOCH)  # the database takes no earlier ones
    found = list(islice(_until(spec_times(name, spec, since), until), MOST_TIMES + 1))
    if len(found) > MOST_TIMES:
        raise BadArgument(
            f"schedule {name} has more than {MOST_TIMES} times from {since} to {until}",
            detail={"field": "until"},
            hint="backfill a shorter time, and then the next",
        )
    return found


def spec_times(name: str, spec: Mapping[str, Any], since: datetime) -> Iterator[datetime]:
    """The times of a schedule from `since` on. Raises: ScheduleInvalid."""
    if "cron" in spec:
        # a microsecond before: the first may be at `since` itself
        yield from cron_times(spec["cron"], spec["zone"], name, since - timedelta(microseconds=1))
    elif "every" in spec:
        anchor = datetime.fromisoformat(spec["starts_at"]) if "starts_at" in spec else _EPOCH
        span = timedelta(seconds=spec["every"])
        number = max(0, ceil((since - anchor) / span))
        while True:
            yield anchor + number * span
            number += 1
    else:
        times = [datetime.fromisoformat(each).astimezone(UTC) for each in spec["times"]]
        yield from (at for at in sorted(times) if at >= since)


def _until(times: Iterable[datetime], until: datetime) -> Iterator[datetime]:
    for at in times:
        if at >= until:
            return
        yield at


def _rising(found: Iterable[datetime], after: datetime) -> Iterator[datetime]:
    last = after.astimezone(UTC)
    with suppress(OverflowError):  # no time is after the year 9999
        for local in found:
            at = local.astimezone(UTC)
            # several times in a gap are one; one that follows real time is on no clock there
            if at > last and at.astimezone(local.tzinfo) == local:
                yield at
                last = at


def _unhashed(expr: str, name: str) -> str:
    """The expression with values for its `H`. Raises: ScheduleInvalid."""
    fields = expr.upper().split()
    if len(fields) != len(_RANGES):
        raise _refused(expr, "has not five fields")
    for number, (low, high) in enumerate(_RANGES):
        drawn = int.from_bytes(sha256(f"{name} {number}".encode()).digest()[:8])

        def value(found: re.Match[str], low: int = low, high: int = high, drawn: int = drawn) -> str:
            first, last, step = int(found[1] or low), int(found[2] or high), int(found[3] or 1)
            if not low <= first <= last <= high or not 0 < step <= last - first + 1:
                raise _refused(expr, f"has an H out of range: {found[0]}")
            if found[3] is None:
                return str(first + drawn % (last - first + 1))
            return f"{first + drawn % step}-{last}/{step}"

        fields[number] = _HASHED.sub(value, fields[number])
    return " ".join(fields)


def _refused(expr: str, why: str) -> ScheduleInvalid:
    return ScheduleInvalid(
        f"{expr[:80]!r} {why}",
        detail={"field": "cron"},
        hint='minute, hour, day of month, month, day of week, such as "30 4 * * mon-fri"',
    )
