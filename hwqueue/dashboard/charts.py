"""Small drawings made on the server: where their lines and bars begin and end."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from hwqueue.types import Attempt, Lease, Minute, RunSummary, Sample

WIDTH, HEIGHT = 100.0, 28.0


def spark(values: Sequence[float | None]) -> list[str]:
    """A line through values, zero-based, as SVG paths; where values are unknown it has gaps."""
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return []
    top = max(known) or 1.0
    step = WIDTH / (len(values) - 1)
    paths: list[str] = []
    points: list[str] = []
    for index, value in enumerate(values):
        if value is None:
            paths.append(" ".join(points))
            points = []
            continue
        y = HEIGHT - 2 - (HEIGHT - 4) * value / top
        points.append(f"{'L' if points else 'M'}{index * step:.1f} {y:.1f}")
    paths.append(" ".join(points))
    return [path for path in paths if "L" in path]


@dataclass(frozen=True, slots=True)
class Cut:
    """A chart that ends below its highest points, so that these do not press all others to the ground.

    Attributes:
        most: The highest value that is drawn.
        beyond: What is higher: when, of what, how many.
    """

    most: float
    beyond: Sequence[tuple[datetime, str, int]]


def cut(minutes: Sequence[Minute], names: Sequence[str]) -> Cut | None:
    """At the 98th percentile, where what is beyond is at least three times as high; None: nowhere."""
    highest = sorted(max(getattr(each, name) for name in names) for each in minutes)
    typical = highest[(len(highest) - 1) * 98 // 100] if highest else 0
    if typical == 0 or highest[-1] < 3 * typical:
        return None
    values = [(each.minute, name, getattr(each, name)) for each in minutes for name in names]
    return Cut(1.2 * typical, [each for each in values if each[2] > 1.2 * typical])


def share(part: float | None, whole: float | None) -> float:
    """A part as a length of 0 to 100; what there is nothing of is 0."""
    if not part or not whole:
        return 0.0
    return min(100.0, max(100.0 * part / whole, 1.0))


def segments(parts: Iterable[tuple[str, float]]) -> list[tuple[str, float, float]]:
    """A stacked bar: (name, left, width) in per cent, parts of nothing left out."""
    given = [(name, value) for name, value in parts if value > 0]
    total = sum(value for _, value in given)
    drawn, left = [], 0.0
    for name, value in given:
        width = 100.0 * value / total
        drawn.append((name, left, width))
        left += width
    return drawn


@dataclass(frozen=True, slots=True)
class RunBar:
    """A run as a bar: its state by the colour, how long it took by the height, of 44."""

    run: RunSummary
    height: float
    length: timedelta


def run_bars(runs: Sequence[RunSummary], now: datetime) -> list[RunBar]:
    """Bars of runs, the newest last; the longest is as high as there is room."""
    lengths = [max((run.finished_at or now) - run.submitted_at, timedelta()) for run in runs]
    longest = max((each.total_seconds() for each in lengths), default=0.0) or 1.0
    return [
        RunBar(run, max(44 * length.total_seconds() / longest, 4.0), length)
        for run, length in zip(reversed(runs), reversed(lengths), strict=True)
    ]


@dataclass(frozen=True, slots=True)
class Bucket:
    """How many waited at most this many seconds, and longer than the bucket before; None: any time."""

    most: float | None
    count: int


def buckets(samples: Iterable[Sample], name: str, queue: str) -> list[Bucket]:
    """A histogram of a queue, without what is empty at both ends; its samples count from zero on."""
    named = [each for each in samples if each.name == f"{name}_bucket" and each.labels["queue"] == queue]
    bounds = sorted(
        (math.inf if each.labels["le"] == "+Inf" else float(each.labels["le"]), each.value) for each in named
    )
    before, made = 0.0, []
    for bound, value in bounds:
        made.append(Bucket(None if bound == math.inf else bound, round(value - before)))
        before = value
    filled = [index for index, each in enumerate(made) if each.count]
    return made[filled[0] : filled[-1] + 1] if filled else []


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of an axis of time: what it was, from when to when, and where, in per cent.

    open: it goes on.
    """

    state: str
    since: datetime
    until: datetime
    left: float
    width: float
    open: bool = False

    @property
    def length(self) -> timedelta:
        """How long it was, or is so far."""
        return self.until - self.since


@dataclass(frozen=True, slots=True)
class Axis:
    """The time from a begin to an end, or to now; what is shorter than `thinnest` is drawn as long."""

    start: datetime
    end: datetime
    thinnest: float

    @property
    def seconds(self) -> float:
        """Its length, never 0."""
        return max((self.end - self.start).total_seconds(), 0.001)

    def stretch(self, state: str, since: datetime, until: datetime, *, is_open: bool = False) -> Stretch:
        """A part of it."""
        since = min(max(since, self.start), self.end)
        until = min(max(until, since), self.end)
        left = 100 * (since - self.start).total_seconds() / self.seconds
        width = max(100 * (until - since).total_seconds() / self.seconds, self.thinnest)
        return Stretch(state, since, until, min(left, 100 - self.thinnest), width, is_open)


@dataclass(frozen=True, slots=True)
class Lane:
    """One attempt of a lease, with the wait before it."""

    title: str
    stretches: tuple[Stretch, ...]
    attempt: Attempt | None = None


def life(lease: Lease, now: datetime) -> list[Lane]:
    """The life of a lease: a lane for each claim it had, all on one time axis."""
    end = lease.finished_at or now
    axis = Axis(min(lease.created_at, end), end, 0.6)
    lanes: list[Lane] = []
    ready = lease.created_at
    for attempt in lease.attempts:
        stretches = (
            axis.stretch("pending", ready, attempt.claimed_at),
            axis.stretch(_outcome(attempt.outcome), attempt.claimed_at, attempt.ended_at),
        )
        lanes.append(Lane(f"claim {len(lanes) + 1}", stretches, attempt))
        ready = attempt.ended_at
    last = _since(lease, ready, axis)
    if last:
        lanes.append(Lane(f"claim {len(lanes) + 1}" if lease.claimed_at else "now", tuple(last)))
    return lanes


def _since(lease: Lease, ready: datetime, axis: Axis) -> list[Stretch]:
    """What has happened since the last attempt that ended, if anything."""
    parts: list[Stretch] = []
    claimed = lease.claimed_at if lease.claimed_at and lease.claimed_at >= ready else None
    due = min(max(lease.available_at or claimed or axis.end, ready), axis.end)
    if due > ready:
        parts.append(axis.stretch("scheduled", ready, due, is_open=lease.state == "scheduled"))
    if lease.state == "pending":
        parts.append(axis.stretch("pending", due, axis.end, is_open=True))
    elif claimed:
        runs = lease.finished_at is None
        parts.append(axis.stretch("pending", due, claimed))
        state = "claimed" if runs else lease.state
        parts.append(axis.stretch(state, claimed, axis.end, is_open=runs))
    elif lease.state == "cancelled":
        parts.append(axis.stretch("cancelled", due, axis.end))
    return parts


def _outcome(outcome: str) -> str:
    if outcome == "completed":  # of a step that a retry of its run has run again
        return outcome
    return "cancelled" if outcome in {"released", "cancelled"} else "failed"
