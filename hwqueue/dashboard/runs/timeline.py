"""The times of a run's steps on one axis: waited for parents, pending, ran, or was idle."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from hwqueue.dashboard.charts import Axis, Stretch
from hwqueue.dashboard.runs.graph import Step
from hwqueue.types import StepDetail, WorkflowRun

_WORK = ("ran", "lost", "idle")  # shown however short it was
_THINNEST = 0.4  # per cent of the axis: what is shorter is drawn as long
# Seconds between two ticks: the least of these that fits.
_TICKS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)
_MOST_TICKS = 7


@dataclass(frozen=True, slots=True)
class Bar:
    """The line of one step.

    The states of its spans are parents, pending, ran, lost (a claim or step that did not complete),
    and idle: a sleep, or a wait for a signal.
    """

    step: Step
    spans: tuple[Stretch, ...]

    def total(self, kind: str) -> timedelta:
        """How long it was of a kind; what ran and was lost counts as run."""
        kinds = ("ran", "lost") if kind == "ran" else (kind,)
        return sum((each.length for each in self.spans if each.state in kinds), timedelta())


@dataclass(frozen=True, slots=True)
class Timeline:
    """The lines of all steps that have begun, and where the axis has its ticks, in per cent."""

    start: datetime
    end: datetime
    bars: tuple[Bar, ...]
    ticks: tuple[tuple[float, timedelta], ...]

    @property
    def has_idle(self) -> bool:
        """Whether one of them slept, or waited for a signal."""
        return any(each.state == "idle" for bar in self.bars for each in bar.spans)


def timeline_of(run: WorkflowRun, steps: Sequence[Step], now: datetime) -> Timeline:
    """The times of a run's steps, from its submission to its end or to now."""
    start, end = run.submitted_at, max(run.finished_at or now, run.submitted_at)
    axis = Axis(start, end, _THINNEST)
    return Timeline(start, end, tuple(Bar(step, _spans(step, axis)) for step in steps), _ticks(axis))


def _ticks(axis: Axis) -> tuple[tuple[float, timedelta], ...]:
    step = next((each for each in _TICKS if axis.seconds / each <= _MOST_TICKS), None)
    if step is None:
        step = _TICKS[-1] * (int(axis.seconds / _TICKS[-1] / _MOST_TICKS) + 1)
    return tuple(
        (100 * at / axis.seconds, timedelta(seconds=at)) for at in range(0, int(axis.seconds) + 1, step)
    )


def _spans(step: Step, axis: Axis) -> tuple[Stretch, ...]:
    detail = step.detail
    if detail is None or detail.released_at is None:
        if step.state == "waiting":
            return (axis.stretch("parents", axis.start, axis.end, is_open=True),)
        return ()
    spans = [axis.stretch("parents", axis.start, detail.released_at)]
    if step.kind == "task":
        spans += _of_lease(step, detail, detail.released_at, axis)
    else:
        runs = detail.ended_at is None
        until = detail.ended_at or axis.end
        spans.append(axis.stretch(_work(step), detail.released_at, until, is_open=runs))
    return tuple(each for each in spans if each.length or each.open or each.state in _WORK)


def _work(step: Step) -> str:
    """What a step without a lease of its own did from its begin to its end."""
    if step.kind in ("sleep", "wait"):
        return "idle"
    return "lost" if step.state in ("failed", "cancelled") else "ran"


def _of_lease(step: Step, detail: StepDetail, ready: datetime, axis: Axis) -> Iterator[Stretch]:
    """The times of a task since its lease was spawned."""
    for attempt in detail.attempts:
        yield axis.stretch("pending", ready, attempt.claimed_at)
        kind = "ran" if attempt.outcome == "completed" else "lost"
        yield axis.stretch(kind, attempt.claimed_at, attempt.ended_at)
        ready = attempt.ended_at
    never = axis.end if step.state == "scheduled" else ready  # it waits for something else
    due = min(max(detail.available_at or never, ready), axis.end)
    if step.state in ("pending", "scheduled"):
        yield axis.stretch("pending", due, axis.end, is_open=True)
    elif step.state == "waiting":
        yield axis.stretch("parents", ready, axis.end, is_open=True)
    elif detail.claimed_at is not None and detail.claimed_at >= ready:
        runs = detail.ended_at is None
        yield axis.stretch("pending", due, detail.claimed_at)
        yield axis.stretch("ran", detail.claimed_at, detail.ended_at or axis.end, is_open=runs)
    elif detail.ended_at is not None and detail.ended_at > due:
        yield axis.stretch("pending", due, detail.ended_at)
