"""A lease: what its handler saved, how its attempts ended, and a bar while it is waited for."""

import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from hwqueue import error_text
from hwqueue.cli.options import options_of
from hwqueue.cli.output import fields_of, plain_text, show_one, show_rows
from hwqueue.cli.tables import row_of
from hwqueue.client import Client
from hwqueue.client._ends import ENDED, timed_out
from hwqueue.client._pauses import Pauses
from hwqueue.text import bar, duration
from hwqueue.types import Attempt, Lease, SavedCheckpoint

_MOST_CHARS = 120


def error_line(error: Any, reason: str | None = None) -> str:
    """What went wrong in one line, cut off."""
    text = error_text.error_line(error, reason)
    return text if len(text) <= _MOST_CHARS else f"{text[: _MOST_CHARS - 1]}…"


def show_lease(
    ctx: typer.Context, lease: Lease, names: Mapping[UUID, str], saved: Sequence[SavedCheckpoint] = ()
) -> None:
    """Print a lease, what its handler has saved, and its attempts with their tracebacks.

    Args:
        names: Of nodes.
        saved: The checkpoints.
    """
    facts = fields_of(lease)
    if options_of(ctx).json:
        show_one(ctx, facts | ({"checkpoints": list(map(fields_of, saved))} if saved else {}))
        return
    del facts["attempts"]
    facts["error"] = None if lease.error is None else error_line(lease.error)
    facts["progress"] = _progress(lease)
    if waits := [_waits(one) for one in saved if one.is_suspended]:
        facts["suspended"] = waits[0]
    show_one(ctx, facts)
    if saved:
        typer.echo()
        show_rows(ctx, list(map(_checkpoint_row, saved)))
    for attempt in lease.attempts:
        typer.echo()
        for line in _attempt(attempt, names):
            typer.echo(line)


def _waits(one: SavedCheckpoint) -> str:
    """What an open checkpoint waits for, in words."""
    until = None if one.waits_until is None else plain_text(one.waits_until)
    if one.waits_for is None:
        return f"sleeps until {until}"
    return f"waits for signal {one.waits_for}" + ("" if until is None else f", until {until}")


_checkpoint_row = row_of(
    SavedCheckpoint,
    "checkpoint=name at=saved_at bytes state",
    state=lambda one: f"open: {_waits(one)}" if one.is_open else "saved",
)


def _progress(lease: Lease) -> str | None:
    """A bar where it is known how far it has come, and the handler's words."""
    progress = lease.progress
    if progress is None or progress.fraction is None:
        return progress.words if progress else None
    return f"{bar(progress.fraction)} {progress.words}"


def _attempt(attempt: Attempt, names: Mapping[UUID, str]) -> Iterator[str]:
    """How it ended; what users wrote is indented, so that it does not look like output of ours."""
    node = plain_text(names.get(attempt.node_id, attempt.node_id))
    lasted = duration(attempt.ended_at - attempt.claimed_at)
    when = plain_text(attempt.ended_at)
    yield f"attempt {attempt.attempt} {attempt.outcome} on {node} after {lasted}, {when}"
    if attempt.assignment is not None and attempt.assignment.gpus:
        yield f"  had {plain_text(attempt.assignment.gpu_words)}"
    if attempt.progress is not None:
        yield f"  had come to {plain_text(attempt.progress.words)}"
    error = attempt.error
    if error is None:
        return
    trace = error.get("traceback") if isinstance(error, Mapping) else None
    if isinstance(trace, str) and trace.strip():
        yield from (f"  {plain_text(line)}" for line in trace.rstrip().split("\n"))
    else:
        yield f"  {plain_text(error_line(error))}"


def wait_with_bar(client: Client, lease_id: UUID, timeout: timedelta | None, console: Console) -> Lease:
    """Wait until the lease has ended, with a bar on the console.

    Raises: WaitTimeout, LeaseNotFound.
    """
    pauses = Pauses(timeout)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[said]}", markup=False),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        shown = bar.add_task("", total=None, said="")
        while (lease := client.get_lease(lease_id)).state not in ENDED:
            fraction = lease.progress.fraction if lease.progress else None
            bar.update(
                shown,
                description=lease.state.value,
                completed=fraction or 0,
                total=None if fraction is None else 1,
                said=plain_text(lease.progress.words) if lease.progress else "",
                refresh=True,
            )
            if pauses.is_over:
                raise timed_out([lease_id], timeout)
            time.sleep(pauses.next(notified=False))
    return lease
