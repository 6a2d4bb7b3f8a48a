"""What operators do with runs and their steps. A step is named `RUN:STEP`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from uuid import UUID

from hwqueue.client import AsyncClient
from hwqueue.dashboard.action import Action, Fields, Question
from hwqueue.dashboard.forms import json_value
from hwqueue.dashboard.reads import Reads
from hwqueue.dashboard.runs.graph import shown
from hwqueue.errors import BadArgument
from hwqueue.text import plural
from hwqueue.types import RetriedStep, RetryMode


async def _ask_cancel(source: Reads, run_id: str) -> Question:
    view = await source.run_view(UUID(run_id))
    states = Counter(shown(step) for step in view.steps)
    waiting = states["pending"] + states["scheduled"]
    return Question(
        f"Cancel this run of {view.run.workflow}?",
        (
            f"{plural(states['running'], 'step runs and is', 'steps run and are')} asked to stop;"
            f" {plural(waiting, 'lease')} that wait for a node end at once;"
            f" {plural(states['waiting'], 'step')} will never be released.",
            "What has completed stays. The run can be retried when it has ended.",
        ),
        "Cancel the run",
        ("reason",),
    )


async def _ask_pause(source: Reads, run_id: str) -> Question:
    view = await source.run_view(UUID(run_id))
    states = Counter(shown(step) for step in view.steps)
    going = states["running"] + states["pending"] + states["scheduled"]
    return Question(
        f"Pause this run of {view.run.workflow}?",
        (
            "Steps that become due are held until it is resumed.",
            f"{plural(going, 'step that is released goes', 'steps that are released go')} on.",
        ),
        "Pause",
    )


async def _ask_resume(source: Reads, run_id: str) -> Question:
    view = await source.run_view(UUID(run_id))
    held = sum(step.reason == "run_paused" for step in view.steps)
    return Question(
        f"Resume this run of {view.run.workflow}?",
        (f"{plural(held, 'step that is held is', 'steps that are held are')} released at once.",),
        "Resume",
    )


async def _ask_retry(source: Reads, run_id: str) -> Question:
    run = await source.run(UUID(run_id))
    again = await source.retried(UUID(run_id))
    return _retry_question(f"Retry this run of {run.workflow}?", again, "Retry")


async def _ask_retry_downstream(source: Reads, run_id: str) -> Question:
    run = await source.run(UUID(run_id))
    again = await source.retried(UUID(run_id), mode="failed_and_downstream")
    return _retry_question(
        f"Retry this run of {run.workflow}, with all that comes after what failed?",
        again,
        "Retry with what follows",
    )


async def _ask_retry_all(source: Reads, run_id: str) -> Question:
    run = await source.run(UUID(run_id))
    again = await source.retried(UUID(run_id), mode="all")
    return _retry_question(f"Run all steps of {run.workflow} again?", again, "Run all again")


async def _ask_retry_step(source: Reads, subject: str) -> Question:
    run_id, step = _step(subject)
    again = await source.retried(run_id, steps=[step])
    return _retry_question(f"Run again from step {step}?", again, "Run again")


def _retry_question(headline: str, again: list[RetriedStep], button: str) -> Question:
    return Question(
        headline,
        (
            f"{plural(len(again), 'step runs', 'steps run')} again, under the same lease ids, with"
            " attempts counted from 0. Results of all others stay.",
        ),
        button,
        things=tuple((each.state, each.step) for each in again),
    )


async def _ask_skip(source: Reads, subject: str) -> Question:
    run_id, step = _step(subject)
    view = await source.run_view(run_id)
    row = next((each for each in view.steps if each.step == step), None)
    state = shown(row) if row else "unknown"
    return Question(
        f"Skip step {step}?",
        (
            f"It is {state}. It counts as completed, and what comes after it goes on.",
            "Other steps that read its result get what you give here.",
        ),
        "Skip the step",
        ("result", "reason"),
    )


async def _ask_signal(source: Reads, subject: str) -> Question:
    run_id, step = _step(subject)
    view = await source.run_view(run_id)
    signals = {each["name"]: each["signal"] for each in view.definition.spec["steps"] if "signal" in each}
    if step not in signals:
        raise BadArgument(f"{step[:100]!r} waits for no signal", hint="see the steps of the run")
    row = next(each for each in view.steps if each.step == step)
    name = signals.pop(step)
    kept = sum(each.name == name and each.taken_by is None for each in view.signals)
    if row.state == "running":
        becomes = f"Step {step} is open: it takes the oldest signal {name} at once, and completes."
    elif row.state == "waiting":
        becomes = f"Step {step} is not released yet: signal {name} is kept until it takes one."
    else:
        becomes = f"Step {step} is {row.state}: signal {name} is kept for other steps."
    return Question(
        f"Send this run of {view.run.workflow} a signal?",
        (
            f"{becomes} {plural(kept, 'signal')} of that name {'is' if kept == 1 else 'are'} kept.",
            "Its payload becomes the result of the step. The same name and key reach a run once.",
        ),
        "Send the signal",
        ("signal",),
        signals=(name, *sorted(set(signals.values()) - {name})),
        is_noted=False,
    )


def _step(subject: str) -> tuple[UUID, str]:
    run_id, _, step = subject.partition(":")
    return UUID(run_id), step


async def _cancel(client: AsyncClient, run_id: str, fields: Fields) -> None:
    reason = fields.get("reason", "").strip() or None
    await client.cancel_workflow_run(UUID(run_id), reason=reason)


async def _pause(client: AsyncClient, run_id: str, fields: Fields) -> None:
    await client.pause_workflow_run(UUID(run_id))


async def _resume(client: AsyncClient, run_id: str, fields: Fields) -> None:
    await client.resume_workflow_run(UUID(run_id))


async def _retry(client: AsyncClient, run_id: str, fields: Fields) -> None:
    await client.retry_workflow_run(UUID(run_id))


async def _retry_downstream(client: AsyncClient, run_id: str, fields: Fields) -> None:
    mode: RetryMode = "failed_and_downstream"
    await client.retry_workflow_run(UUID(run_id), mode=mode)


async def _retry_all(client: AsyncClient, run_id: str, fields: Fields) -> None:
    mode: RetryMode = "all"
    await client.retry_workflow_run(UUID(run_id), mode=mode)


async def _retry_step(client: AsyncClient, subject: str, fields: Fields) -> None:
    run_id, step = _step(subject)
    await client.retry_workflow_run(run_id, steps=[step])


async def _skip(client: AsyncClient, subject: str, fields: Fields) -> None:
    run_id, step = _step(subject)
    await client.skip_step(
        run_id,
        step,
        result=json_value(fields, "result") if fields.get("result", "").strip() else None,
        reason=fields.get("reason", "").strip() or None,
    )


async def _signal(client: AsyncClient, subject: str, fields: Fields) -> None:
    run_id, _ = _step(subject)
    await client.signal_workflow_run(
        run_id,
        fields.get("signal", ""),
        json_value(fields, "payload") if fields.get("payload", "").strip() else None,
        key=fields.get("signal_key", "").strip() or None,
    )


ACTIONS: Mapping[str, Action] = {
    "cancel-run": Action("run", _ask_cancel, _cancel, "Cancelled, or being cancelled."),
    "pause-run": Action("run", _ask_pause, _pause, "Paused: steps that become due are held."),
    "resume-run": Action("run", _ask_resume, _resume, "Resumed."),
    "retry-run": Action("run", _ask_retry, _retry, "Retried: what had not completed runs again."),
    "retry-downstream": Action(
        "run",
        _ask_retry_downstream,
        _retry_downstream,
        "Retried: what had not completed runs again, and all that comes after it.",
    ),
    "retry-all": Action("run", _ask_retry_all, _retry_all, "Retried: all steps run again."),
    "retry-step": Action("step", _ask_retry_step, _retry_step, "Retried from that step."),
    "skip-step": Action("step", _ask_skip, _skip, "Skipped: it counts as completed."),
    "send-signal": Action("step", _ask_signal, _signal, "The run has the signal."),
}
