"""What a run is doing, or waits for, in one sentence."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from hwqueue.dashboard.formatting import error_line
from hwqueue.dashboard.runs.graph import Step
from hwqueue.text import duration, plural
from hwqueue.types import WorkflowRun

_MOST_NAMES = 3


@dataclass(frozen=True, slots=True)
class Says:
    """A headline about a run.

    step: the one that it is about. waits_for: the one whose lease waits for a node: a page says
    why, once it has looked at the fleet. until: when the wait of the text ends, None: not at a
    time. more: a second line, may be empty.
    """

    state: str
    tone: str
    text: str
    more: str = ""
    step: Step | None = None
    waits_for: Step | None = None
    until: datetime | None = None


def says_of(run: WorkflowRun, steps: Sequence[Step], names: Mapping[UUID, str]) -> Says:
    """What a run is doing.

    Args:
        names: Of nodes.
    """
    if run.finished_at is not None:
        return _ended(run, steps)
    by_state: dict[str | None, list[Step]] = defaultdict(list)
    for step in steps:
        by_state[step.state].append(step)
    if run.state == "paused":
        held = sum(step.row is not None and step.row.reason == "run_paused" for step in steps)
        text = f"Paused: {plural(held, 'step that is due is', 'steps that are due are')} held."
        return Says("paused", "warn", text, _running(by_state["running"], names))
    if run.state != "running":
        left = sum(len(by_state[state]) for state in ("running", "pending", "scheduled"))
        verb, tone = ("Fails", "bad") if run.state == "failing" else ("Is being cancelled", "")
        return Says(run.state, tone, f"{verb}: {plural(left, 'step')} still to end.", _reason(run))
    return _going(by_state, names)


def _going(by_state: Mapping[str | None, Sequence[Step]], names: Mapping[UUID, str]) -> Says:
    running, pending, scheduled = (by_state.get(state, ()) for state in ("running", "pending", "scheduled"))
    waits_for = pending[0] if pending else None
    idle = [step for step in running if step.row and step.row.headline]
    running = [step for step in running if step not in idle]
    if running:
        more = f"{_named(pending)} wait{'s' if len(pending) == 1 else ''} for a node."
        return Says("running", "", _running(running, names), more if pending else "", waits_for=waits_for)
    if waits_for is not None:
        rest = len(pending) - 1
        more = f"{plural(rest, 'other step waits', 'other steps wait')} for a node, too."
        return Says("pending", "warn", "Waits for step", more if rest else "", waits_for, waits_for)
    if idle:
        says, until = idle[0].waits
        count = len(idle) - 1
        if all(step.kind in ("sleep", "wait") for step in idle[1:]):
            others = plural(count, "other step waits", "other steps wait") + " for a signal or a time"
        else:  # maps and nested runs wait for what they are made of
            others = plural(count, "other step goes on", "other steps go on")
        more = f"{others}, too." if count else ""
        colon = ":" if idle[0].counts else ""
        text = f"Step {idle[0].name}{colon} {says}"
        return Says("waiting", "", text if until else f"{text}.", more, until=until)
    if scheduled:
        return Says("scheduled", "", f"Waits for its time: {_named(scheduled)}.")
    return Says("waiting", "", "Waits for upkeep, which releases the steps that are due.")


def _ended(run: WorkflowRun, steps: Sequence[Step]) -> Says:
    assert run.finished_at is not None
    took = duration(run.finished_at - run.submitted_at)
    if run.state == "completed":
        return Says("completed", "", f"Completed in {took}.")
    if run.state == "cancelled":
        return Says("cancelled", "", f"Cancelled after {took}.", _reason(run))
    failed = next((step for step in steps if step.state == "failed"), None)
    if failed is None:
        return Says("failed", "bad", f"Failed after {took}.", _reason(run))
    error = error_line(failed.row.error, failed.row.reason) if failed.row else ""
    return Says("failed", "bad", f"Failed after {took} at step", error or _reason(run), failed)


def _reason(run: WorkflowRun) -> str:
    detail = run.detail or {}
    why, who = detail.get("reason"), detail.get("by")
    told = str(why) if why else (run.reason or "").replace("_", " ")
    return f"{told}, by {who}" if who else told


def _running(steps: Sequence[Step], names: Mapping[UUID, str]) -> str:
    if not steps:
        return ""
    parts = []
    for step in steps[:_MOST_NAMES]:
        node = names.get(step.row.node_id) if step.row and step.row.node_id else None
        parts.append(f"{step.name} on {node}" if node else step.name)
    rest = len(steps) - len(parts)
    return f"Runs {', '.join(parts)}{f' and {rest} more' if rest else ''}."


def _named(steps: Sequence[Step]) -> str:
    rest = len(steps) - _MOST_NAMES
    names = ", ".join(step.name for step in steps[:_MOST_NAMES])
    return f"{names} and {rest} more" if rest > 0 else names
