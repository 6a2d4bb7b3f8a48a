"""Changing all leases that a filter means: count, ask, go through the pages."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Protocol

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from hwqueue.cli.completion import queue_names
from hwqueue.cli.inputs import moment_before, pairs
from hwqueue.cli.output import say, show_one
from hwqueue.client import Client
from hwqueue.errors import ConfigError
from hwqueue.text import plural
from hwqueue.types import BulkPage, BulkResult, LeaseFilter, LeaseState

OPEN = (LeaseState.SCHEDULED, LeaseState.PENDING, LeaseState.CLAIMED)
WAITING = (LeaseState.SCHEDULED, LeaseState.PENDING)
ENDED = (LeaseState.COMPLETED, LeaseState.FAILED, LeaseState.CANCELLED)
DEAD = (LeaseState.FAILED, LeaseState.CANCELLED)

QueueOption = Annotated[
    str | None, typer.Option("--queue", help="Only of this queue.", autocompletion=queue_names)
]
State = Annotated[LeaseState | None, typer.Option("--state", help="Only in this state.")]
Task = Annotated[str | None, typer.Option("--task", help="Only of this task.")]
Label = Annotated[
    list[str] | None,
    typer.Option("--label", help="Only with this label, key=value; repeatable."),
]
Error = Annotated[
    str | None,
    typer.Option("--error", help="Only those whose error is of this type, such as TimeoutError."),
]
Older = Annotated[
    str | None,
    typer.Option(
        "--older",
        help="Only those that ended, or were spawned if they are open, this span ago: 2h; or before a time.",
    ),
]
Tenant = Annotated[str | None, typer.Option("--tenant", help="Only of this tenant.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="With --queue: only count them.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="With --queue: do not ask.")]


_SKIPPED = "other sessions held some of them: run the command again"
_CANNOT_MOVE = "one that cannot be in that queue says why: hwqueue lease move QUEUE LEASE_ID"


class Change(Protocol):
    """Changes all leases of a selection, page by page."""

    def __call__(self, *, on_progress: Callable[[BulkPage], object]) -> BulkResult: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which leases of a queue a command means."""

    queue: str
    wanted: LeaseFilter
    states: Collection[LeaseState]


def select(
    queue: str | None,
    lease_ids: list[str] | None,
    states: Collection[LeaseState],
    *,
    state: LeaseState | None = None,
    older: str | None = None,
    label: list[str] | None = None,
    **more: str | None,
) -> Selection | None:
    """The filter of a command that can change leases in these states; None: it got ids.

    Raises: ConfigError for ids with a filter, neither, or a state that it cannot change.
    """
    filters = [state, older, label, *more.values()]
    if bool(lease_ids) == bool(queue):
        raise ConfigError("give ids of leases, or --queue and what else they have in common")
    if queue is None:
        if any(filters):
            raise ConfigError("filters go with --queue, not with ids of leases")
        return None
    if state is not None and state not in states:
        raise ConfigError(f"--state: give one of {', '.join(states)}, not {state}")
    wanted: LeaseFilter = {
        "state": state,
        "task": more.get("task"),
        "tenant": more.get("tenant"),
        "error_type": more.get("error"),
        "labels": pairs(label, "--label") if label else None,
    }
    if older is not None:
        ended = state in ENDED if state else all(each in ENDED for each in states)
        wanted["finished_before" if ended else "created_before"] = moment_before(older, "--older")
    return Selection(queue=queue, wanted=wanted, states=[state] if state else states)


def change_all(
    ctx: typer.Context,
    client: Client,
    selection: Selection,
    change: Change,
    *,
    verb: str,
    done: str,
    dry_run: bool,
    yes: bool,
) -> None:
    """Count the leases, ask, change them page by page, and say how many there were.

    Args:
        change: Does it: a method of the client, with all arguments but `on_progress`.
        verb, done: `cancel`, `cancelled`.
    """
    count = client.count_leases(selection.queue, states=selection.states, **selection.wanted)
    if dry_run or not count:
        show_one(ctx, {"leases": count})
        return
    if not yes:
        question = f"{verb} {plural(count, 'lease')} of queue {selection.queue}?"
        typer.confirm(question, abort=True, err=True)
    with _progress(count, verb) as advance:
        result = change(on_progress=lambda page: advance(len(page.changed) + len(page.skipped)))
    show_one(ctx, {done: result.changed, "skipped": len(result.skipped)})
    if result.skipped:
        say(ctx, "\n".join([_SKIPPED, *([_CANNOT_MOVE] if done == "moved" else [])]))


@contextmanager
def _progress(count: int, verb: str) -> Iterator[Callable[[int], object]]:
    """A bar on a terminal, nothing elsewhere; returns what moves it on."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(verb, total=count)
        yield lambda more: progress.advance(task, more)
