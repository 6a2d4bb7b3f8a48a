"""A run of a workflow and its steps, a line for each; followed until it has ended."""

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from uuid import UUID

import psycopg
import typer
from rich.console import Console, Group
from rich.live import Live

from hwqueue.cli.inputs import names_of_nodes
from hwqueue.cli.lease_view import error_line
from hwqueue.cli.options import options_of
from hwqueue.cli.output import cell, plain_text, say, show_rows
from hwqueue.cli.tables import table_of
from hwqueue.client import Client
from hwqueue.client._ends import run_timed_out
from hwqueue.client._pauses import Pauses
from hwqueue.text import duration, plural
from hwqueue.types import WorkflowRun, WorkflowStep

_MOST_EXPLAINED = 5  # pending steps: each takes a look at the fleet
_MOST_PARENTS = 3
_MOST_HINTS = 3  # steps with items
_GLYPHS: Mapping[str, str] = {
    "waiting": "○",
    "scheduled": "◔",
    "pending": "◔",
    "running": "●",
    "completed": "✓",
    "failed": "✗",
    "cancelled": "⊘",
    "skipped": "·",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """A run and its steps at a moment. why: of pending steps, what keeps their leases."""

    run: WorkflowRun
    steps: list[WorkflowStep]
    why: Mapping[UUID, str] = field(default_factory=dict)


def look_at(client: Client, run_id: UUID, *, explains: bool = False) -> Look:
    """The run as it is now. Raises: RunNotFound."""
    run = client.get_workflow_run(run_id)
    steps = client.list_workflow_steps(run_id)
    return Look(run=run, steps=steps, why=_explained(client, steps) if explains else {})


def follow(ctx: typer.Context, client: Client, run_id: UUID, timeout: timedelta | None) -> Look:
    """Show a run until it has ended: redrawn on a terminal, else a line for each change of a step.

    With --json nothing is shown. Returns: how it ended. Raises: WaitTimeout, RunNotFound.
    """
    screen = Console()
    if options_of(ctx).json:
        client.wait_for_run(run_id, timeout=timeout)
        return look_at(client, run_id)
    if screen.is_terminal:
        with Live(console=screen, auto_refresh=False) as live:
            for look in _looks(client, run_id, timeout):
                table, *_ = table_of(_rows(look, names_of(client, look)), screen.width, plain_text)
                live.update(Group(cell(_headline(look.run)), table), refresh=True)
        return look
    told: dict[str, str] = {}
    for look in _looks(client, run_id, timeout):
        names = names_of(client, look)
        for row in _rows(look, names):
            step, state = str(row["step"]), str(row["state"])
            if told.get(step, "waiting") != state:
                more = [row["node"], row["why"]]
                line = [step, state, *(each for each in more if each is not None)]
                typer.echo("  ".join(map(plain_text, line)))
            told[step] = state
    typer.echo(plain_text(_headline(look.run)))
    return look


def shown_steps(ctx: typer.Context, look: Look, names: Mapping[UUID, str]) -> None:
    """Print the run in a line, and its steps, a row for each."""
    typer.echo(plain_text(_headline(look.run)))
    show_rows(ctx, _rows(look, names))
    for step in [step for step in look.steps if step.items][:_MOST_HINTS]:
        failed = " --state failed" if step.items_failed else ""
        command = f"hwqueue workflow results {look.run.run_id} {step.step}{failed}"
        say(ctx, f"{'members' if step.kind == 'gang' else 'items'} of {step.step}: {command}")
    for step in [step for step in look.steps if step.gang_id][:_MOST_HINTS]:
        verb = "explain" if (step.headline or "").startswith("waits") else "show"
        say(ctx, f"gang of {step.step}: hwqueue gang {verb} {step.gang_id}")


def names_of(client: Client, look: Look) -> Mapping[UUID, str]:
    """The names of the nodes where its steps are or were."""
    wanted = {step.node_id for step in look.steps} - {None}
    if not wanted:
        return {}
    return {node: name for node, name in names_of_nodes(client).items() if node in wanted}


def _looks(client: Client, run_id: UUID, timeout: timedelta | None) -> Iterator[Look]:
    """The run about once a second, the last time when it has ended. Raises: WaitTimeout."""
    pauses = Pauses(timeout)
    yield (look := look_at(client, run_id))
    while look.run.finished_at is None:
        if pauses.is_over:
            raise run_timed_out(look.run, timeout)
        time.sleep(pauses.next(notified=False))
        yield (look := look_at(client, run_id))


def _headline(run: WorkflowRun) -> str:
    """The run in one line."""
    version = "" if run.version is None else f" version {run.version}"
    counts = ", ".join(f"{count} {state}" for state, count in run.step_counts.items())
    lasted = (run.finished_at or datetime.now(UTC)) - run.submitted_at
    reason = f" ({run.reason})" if run.reason else ""
    steps = plural(sum(run.step_counts.values()), "step")
    key = f", key {run.idempotency_key}" if run.idempotency_key else ""
    parent = f", a step of run {run.parent_run_id}" if run.parent_run_id else ""
    return (
        f"run {run.run_id} of {run.workflow}{version}{key}{parent}: {run.state}{reason} after "
        f"{duration(lasted)}; {steps}: {counts}"
    )


def _rows(look: Look, names: Mapping[UUID, str]) -> list[dict[str, object]]:
    return [
        {
            "": _GLYPHS.get(state := _state(step), "?"),
            "step": step.step,
            "state": state,
            "node": None if step.node_id is None else names.get(step.node_id, step.node_id),
            "attempt": step.attempt,
            "why": _why(step, look.why),
        }
        for step in look.steps
    ]


def _state(step: WorkflowStep) -> str:
    """The step's; while its lease waits for a node, the lease's."""
    waits = step.state == "running" and step.lease_state in ("pending", "scheduled")
    return str(step.lease_state) if waits else step.state


def _why(step: WorkflowStep, explained: Mapping[UUID, str]) -> str | None:
    """How far its items are, the run that it is, what it waits for or why it did not complete."""
    nested = f"run {step.nested_run_id}" if step.nested_run_id else None
    counts = items_text(step) if step.kind != "gang" or not step.headline else None
    return "; ".join(filter(None, (counts, nested, _waits(step, explained)))) or None


def items_text(step: WorkflowStep) -> str | None:
    """`412/1,000 items, 3 failed`; None for a step without items."""
    if step.items is None:
        return None
    failed = f", {step.items_failed:,} failed" if step.items_failed else ""
    each = "members" if step.kind == "gang" else "items"
    return f"{step.items_done or 0:,}/{step.items:,} {each}{failed}"


def _waits(step: WorkflowStep, explained: Mapping[UUID, str]) -> str | None:
    """What it waits for, or why it did not complete."""
    if step.waits_for:
        some = ", ".join(step.waits_for[:_MOST_PARENTS])
        more = len(step.waits_for) - _MOST_PARENTS
        return f"after {some}" + (f" and {more} more" if more > 0 else "")
    if step.state == "failed":
        return error_line(step.error, step.reason) or None
    told = explained.get(step.lease_id) if step.lease_id else None
    # of items it is their counts again; of a gang also what that waits for
    headline = step.headline if step.items is None or step.kind == "gang" else None
    return told or headline or step.reason


def _explained(client: Client, steps: list[WorkflowStep]) -> dict[UUID, str]:
    """What keeps the first pending steps, for those who may ask: operators."""
    waiting = [step.lease_id for step in steps if _state(step) == "pending"]
    found: dict[UUID, str] = {}
    with suppress(psycopg.errors.InsufficientPrivilege):
        for lease_id in waiting[:_MOST_EXPLAINED]:
            if lease_id is not None:
                found[lease_id] = client.explain_lease(lease_id).headline
    return found
