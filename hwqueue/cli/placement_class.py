"""hwqueue class: the kinds of work there are, by what decides where they may run."""

from typing import Annotated

import typer

from hwqueue.cli.completion import queue_names
from hwqueue.cli.connect import connection_string
from hwqueue.cli.output import say, show_items
from hwqueue.client import Client
from hwqueue.types import ClassStats

app = typer.Typer(no_args_is_help=True, help="The kinds of work there are (placement classes).")


@app.callback()
def group() -> None:
    """Hold the commands, of which there is one so far."""


@app.command("list", epilog="Example: hwqueue class list --queue renders")
def list_(
    ctx: typer.Context,
    *,
    queue: Annotated[str | None, typer.Option(help="Only of this queue.", autocompletion=queue_names)] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most this many.")] = 500,
    after: Annotated[
        int | None, typer.Option(help="After this class: the last id of the page before.")
    ] = None,
) -> None:
    """List placement classes with what waits and runs of each; on a page those with most first."""
    with Client(connection_string(ctx), pool_size=1) as client:
        found = client.placement_class_stats(queue=queue, after=after, limit=limit)
    most = sorted(found, key=lambda one: (-one.pending, -one.running, one.class_id))
    show_items(ctx, most, _row, empty="no placement classes")
    if len(found) == limit:
        say(ctx, f"there may be more: --after {found[-1].class_id}")


def _row(one: ClassStats) -> dict[str, object]:
    return {
        "class": one.class_id,
        "queue": one.queue,
        "task": one.task_name,
        "asks": one.words,
        "labels": dict(one.labels) or None,
        "tenant": one.tenant or None,
        "pending": one.pending,
        "running": one.running,
        "profiles": one.profiles,
        "reach": None if one.reach is None else f"{one.reach:.1%}",
    }
