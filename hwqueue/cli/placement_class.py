"""hwqueue class: the kinds of work there are, by what decides where they may run."""

from typing import Annotated

import typer
from typer import Option

from hwqueue.cli.completion import queue_names
from hwqueue.cli.connect import ask
from hwqueue.cli.groups import Commands
from hwqueue.cli.output import say_more, show_items
from hwqueue.cli.tables import row_of
from hwqueue.client import Client
from hwqueue.types import ClassStats

app = Commands("The kinds of work there are (placement classes).")


@app.command("hwqueue class list --queue renders")
def list_(
    ctx: typer.Context,
    *,
    queue: Annotated[str | None, Option(help="Only of this queue.", autocompletion=queue_names)] = None,
    limit: Annotated[int, Option(min=1, help="At most this many.")] = 500,
    after: Annotated[int | None, Option(help="After this class: the last id of the page before.")] = None,
) -> None:
    """List placement classes with what waits and runs of each; on a page those with most first."""
    found = ask(ctx, Client.placement_class_stats, queue=queue, after=after, limit=limit)
    most = sorted(found, key=lambda one: (-one.pending, -one.running, one.class_id))
    show_items(ctx, most, _row, empty="no placement classes")
    say_more(ctx, found, limit, "--after {0.class_id}")


_row = row_of(
    ClassStats,
    "class=class_id queue task=task_name asks=words labels tenant pending running profiles reach",
    labels=lambda one: dict(one.labels) or None,
    tenant=lambda one: one.tenant or None,
    reach=lambda one: None if one.reach is None else f"{one.reach:.1%}",
)
