"""What operators do with runs and their steps. A step is named `RUN:STEP`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from hwqueue.client import AsyncClient
from hwqueue.dashboard.action import Action, Fields, Question, typed
from hwqueue.dashboard.forms import json_value
from hwqueue.dashboard.reads import Reads, RunView
from hwqueue.dashboard.runs.graph import state_word
from hwqueue.errors import BadArgument
from hwqueue.text import plural
from hwqueue.types import RetryMode


def _ask_cancel(view: RunView) -> Question:
    states = Counter(state_word(step) for step in view.steps)
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


def _ask_pause(view: RunView) -> Question:
    states = Counter(state_word(step) for step in view.steps)
    going = states["running"] + states["pending"] + states["scheduled"]
    return Question(
        f"Pause this run of {view.run.workflow}?",
        (
            "Steps that become due are held until it is resumed.",
            f"{plural(going, 'step that is released goes', 'steps that are released go')} on.",
        ),
        "Pause",
    )


def _ask_resume(view: RunView) -> Question:
    held = sum(step.reason == "run_paused" for step in view.steps)
    return Question(
        f"Resume this run of {view.run.workflow}?",
        (f"{plural(held, 'step that is held is', 'steps that are held are')} released at once.",),
        "Resume",
    )


def _retry(mode: RetryMode | None, headline: str, button: str, done: str) -> Action[Question]:
    """Run steps again: those of a mode, or None: the step that it is done to, and what follows it.

    headline: with the workflow, or the step, in the place of `{}`.
    """

    async def find(source: Reads, subject: str) -> Question:
        run_id, step = _step(subject)
        what = step or (await source.run(run_id)).workflow
        again = await source.retried(run_id, mode=mode, steps=[step] if step else None)
        return Question(
            headline.format(what),
            (
                f"{plural(len(again), 'step runs', 'steps run')} again, under the same lease ids, with"
                " attempts counted from 0. Results of all others stay.",
            ),
            button,
            things=tuple((each.state, each.step) for each in again),
        )

    async def do(client: AsyncClient, subject: str, _: Fields) -> None:
        run_id, step = _step(subject)
        await client.retry_workflow_run(run_id, mode=mode, steps=[step] if step else None)

    return Action("run" if mode else "step", find, lambda question: question, do, done)


async def _view_of_step(source: Reads, subject: str) -> tuple[RunView, str]:
    run_id, step = _step(subject)
    return await source.run_view(run_id), step


def _ask_skip(found: tuple[RunView, str]) -> Question:
    view, step = found
    row = next((each for each in view.steps if each.step == step), None)
    state = state_word(row) if row else "unknown"
    return Question(
        f"Skip step {step}?",
        (
            f"It is {state}. It counts as completed, and what comes after it goes on.",
            "Other steps that read its result get what you give here.",
        ),
        "Skip the step",
        ("result", "reason"),
    )


def _ask_signal(found: tuple[RunView, str]) -> Question:
    view, step = found
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


async def _skip(client: AsyncClient, subject: str, fields: Fields) -> None:
    result = json_value(fields, "result") if typed(fields, "result") else None
    await client.skip_step(*_step(subject), result=result, reason=typed(fields, "reason"))


async def _signal(client: AsyncClient, subject: str, fields: Fields) -> None:
    payload = json_value(fields, "payload") if typed(fields, "payload") else None
    run_id, _ = _step(subject)
    signal, key = fields.get("signal", ""), typed(fields, "signal_key")
    await client.signal_workflow_run(run_id, signal, payload, key=key)


ACTIONS: Mapping[str, Action[Any]] = {
    "cancel-run": Action(
        "run",
        Reads.run_view,
        _ask_cancel,
        lambda client, run_id, fields: client.cancel_workflow_run(run_id, reason=typed(fields, "reason")),
        "Cancelled, or being cancelled.",
    ),
    "pause-run": Action(
        "run",
        Reads.run_view,
        _ask_pause,
        lambda client, run_id, _: client.pause_workflow_run(run_id),
        "Paused: steps that become due are held.",
    ),
    "resume-run": Action(
        "run",
        Reads.run_view,
        _ask_resume,
        lambda client, run_id, _: client.resume_workflow_run(run_id),
        "Resumed.",
    ),
    "retry-run": _retry(
        "failed",
        "Retry this run of {}?",
        "Retry",
        "Retried: what had not completed runs again, and what comes after it.",
    ),
    "retry-downstream": _retry(
        "failed_and_downstream",
        'Retry this run of {}, with joins "any" that have completed?',
        "Retry with what follows",
        "Retried: what had not completed runs again, and all that comes after it.",
    ),
    "retry-all": _retry(
        "all", "Run all steps of {} again?", "Run all again", "Retried: all steps run again."
    ),
    "retry-step": _retry(None, "Run again from step {}?", "Run again", "Retried from that step."),
    "skip-step": Action("step", _view_of_step, _ask_skip, _skip, "Skipped: it counts as completed."),
    "send-signal": Action("step", _view_of_step, _ask_signal, _signal, "The run has the signal."),
}
