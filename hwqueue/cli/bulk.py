"""Changing all leases that a filter means: count, ask, go through the pages."""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from typer import Option

from hwqueue.cli.completion import queue_names
from hwqueue.cli.groups import Only
from hwqueue.cli.inputs import moment_before, pairs
from hwqueue.cli.output import say, show_one
from hwqueue.cli.spawning import A_LABEL
from hwqueue.client import Client
from hwqueue.errors import ConfigError
from hwqueue.meanings import meaning
from hwqueue.text import plural
from hwqueue.types import BulkResult, LeaseFilter, LeaseState

OPEN = (LeaseState.SCHEDULED, LeaseState.PENDING, LeaseState.CLAIMED)
WAITING = (LeaseState.SCHEDULED, LeaseState.PENDING)
ENDED = (LeaseState.COMPLETED, LeaseState.FAILED, LeaseState.CANCELLED)
DEAD = (LeaseState.FAILED, LeaseState.CANCELLED)

_SKIPPED = "other sessions held some of them: run the command again"
_CANNOT_MOVE = "one that cannot be in that queue says why: hwqueue lease move QUEUE LEASE_ID"

MaybeQueue = Annotated[str | None, Option("--queue", help="Only of this queue.", autocompletion=queue_names)]
Queue = Annotated[str, Option("--queue", help="Of this queue.", autocompletion=queue_names)]


@dataclass(frozen=True, kw_only=True)
class Filter:
    """Which leases a command means."""

    state: Annotated[LeaseState | None, Option(help=meaning("leases.state"))] = None
    task: Annotated[str | None, Option(help=meaning("leases.task"))] = None
    label: Annotated[list[str] | None, Option(help=meaning("leases.labels", A_LABEL))] = None
    error: Annotated[str | None, Option(help=meaning("leases.error_type"))] = None
    older: Annotated[
        str | None,
        Option(
            help="Only those that ended, or were spawned if they are open, this span ago: 2h; or before"
            " a time."
        ),
    ] = None
    tenant: Annotated[str | None, Option(help=meaning("leases.tenant"))] = None

    def as_filter(self) -> LeaseFilter:
        """What was typed, as a client takes it, but for `older`. Raises: ConfigError."""
        return {
            "state": self.state,
            "task": self.task,
            "tenant": self.tenant,
            "error_type": self.error,
            "labels": pairs(self.label, "--label") if self.label else None,
        }


FilterOfOpen = Annotated[Filter, Only("state", "task", "label", "older", "tenant")]
"""The filter of what cannot have an error yet."""


@dataclass(frozen=True, kw_only=True)
class FilterOfFailed(Filter):
    """The same, of failed leases unless told otherwise."""

    state: Annotated[LeaseState | None, Option(help=meaning("leases.state"))] = LeaseState.FAILED


@dataclass(frozen=True, kw_only=True)
class Care:
    """Whether a command counts, asks or just does it."""

    dry_run: Annotated[bool, Option("--dry-run", help="With --queue: only count them.")] = False
    yes: Annotated[bool, Option("--yes", "-y", help="With --queue: do not ask.")] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which leases of a queue a command means."""

    queue: str
    wanted: LeaseFilter
    states: Collection[LeaseState]


def select(
    queue: str | None, typed: Filter, states: Collection[LeaseState], lease_ids: list[str] | None = None
) -> Selection | None:
    """The filter of a command that can change leases in these states; None: it got ids.

    Raises: ConfigError for ids with a filter, neither, or a state that it cannot change.
    """
    if bool(lease_ids) == bool(queue):
        raise ConfigError("give ids of leases, or --queue and what else they have in common")
    if queue is None:
        if any(vars(typed).values()):
            raise ConfigError("filters go with --queue, not with ids of leases")
        return None
    state = typed.state
    if state is not None and state not in states:
        raise ConfigError(f"--state: give one of {', '.join(states)}, not {state}")
    wanted = typed.as_filter()
    if typed.older is not None:
        ended = state in ENDED if state else all(each in ENDED for each in states)
        wanted["finished_before" if ended else "created_before"] = moment_before(typed.older, "--older")
    return Selection(queue=queue, wanted=wanted, states=[state] if state else states)


def change_all(
    ctx: typer.Context,
    client: Client,
    selection: Selection,
    change: Callable[..., BulkResult],
    care: Care,
    *,
    verb: str,
    done: str,
) -> None:
    """Count the leases, ask, change them page by page, and say how many there were.

    Args:
        change: A method of the client that takes a queue and a filter.
        verb, done: `cancel`, `cancelled`.
    """
    count = client.count_leases(selection.queue, states=selection.states, **selection.wanted)
    if care.dry_run or not count:
        show_one(ctx, {"leases": count})
        return
    if not care.yes:
        question = f"{verb} {plural(count, 'lease')} of queue {selection.queue}?"
        typer.confirm(question, abort=True, err=True)
    with _progress(count, verb) as advance:
        result = change(
            selection.queue,
            on_progress=lambda page: advance(len(page.changed) + len(page.skipped)),
            **selection.wanted,
        )
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
