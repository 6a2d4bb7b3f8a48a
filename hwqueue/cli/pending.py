"""hwqueue pending: why work is not running, a line for each kind of work."""

from datetime import UTC, datetime
from typing import Annotated, Literal

import typer
from typer import Option

from hwqueue.alike import alike
from hwqueue.cli.completion import queue_names
from hwqueue.cli.connect import ask
from hwqueue.cli.options import options_of
from hwqueue.cli.output import fields_of, say, show_rows
from hwqueue.client import Client
from hwqueue.text import age, plural
from hwqueue.types import PendingReason

_MOST_MERGED = 500

EXAMPLE = "hwqueue pending --queue renders --kind no_match"


def pending(
    ctx: typer.Context,
    *,
    queue: Annotated[str | None, Option(help="Only of this queue.", autocompletion=queue_names)] = None,
    kind: Annotated[
        Literal["no_match", "contended"] | None,
        Option(help="no_match: no live node could ever run it; contended: none can now."),
    ] = None,
    class_id: Annotated[int | None, Option("--class", help="Only the placement class of this id.")] = None,
    order: Annotated[
        Literal["oldest", "pending"], Option(help="What has most pending leases first, or the oldest.")
    ] = "pending",
    limit: Annotated[int, Option(min=1, help="At most this many.")] = 50,
) -> None:
    """Show why leases are pending: how many nodes match each kind, how many are free, what to mend.

    One line stands for all leases that ask the same, and wait for the same reason; --json has a row
    for each placement class.
    """
    is_json = options_of(ctx).json
    found = ask(
        ctx,
        Client.pending_reasons,
        queue=queue,
        kind=kind,
        class_id=class_id,
        order=order,
        limit=limit if is_json else max(limit, _MOST_MERGED),
    )
    if is_json:
        show_rows(ctx, [fields_of(each) for each in found])
        return
    merged = alike(found)
    if order == "pending":
        merged.sort(key=lambda each: (each.row.nodes_matching != 0, -each.row.pending))
    several = any(each.classes > 1 for each in merged)
    rows = [_row(each.row, each.classes if several else None) for each in merged]
    empty = "nothing of this kind is pending"
    show_rows(ctx, rows[:limit], empty=empty)
    if len(rows) > limit:
        left = sum(each.row.pending for each in merged[limit:])
        say(ctx, f"and {len(rows) - limit} more, {plural(left, 'lease')}: --limit {len(rows)}")


def _row(reason: PendingReason, classes: int | None) -> dict[str, object]:
    several = {} if classes is None else {"classes": classes}
    return {
        "class": reason.class_id,
        **several,
        "queue": reason.queue,
        "task": reason.task_name,
        "asks": reason.words,
        "pending": reason.pending,
        "oldest": age(reason.oldest_at, datetime.now(UTC)),
        "match": reason.nodes_matching,
        "free": reason.nodes_free,
        "code": reason.code,
        "why": reason.message,
    }
