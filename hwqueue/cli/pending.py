"""hwqueue pending: why work is not running, a line for each kind of work."""

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated

import typer

from hwqueue.cli.completion import queue_names
from hwqueue.cli.connect import connection_string
from hwqueue.cli.output import show_items
from hwqueue.client import Client
from hwqueue.text import age
from hwqueue.types import PendingReason

EXAMPLE = "hwqueue pending --queue renders --kind no_match"


class Kind(StrEnum):
    """Which classes to list."""

    NO_MATCH = "no_match"
    CONTENDED = "contended"


class Order(StrEnum):
    """Which come first."""

    OLDEST = "oldest"
    PENDING = "pending"


def pending(
    ctx: typer.Context,
    *,
    queue: Annotated[
        str | None, typer.Option(help="Only of this queue.", autocompletion=queue_names)
    ] = None,
    kind: Annotated[
        Kind | None,
        typer.Option(help="no_match: no live node could ever run it; contended: none can now."),
    ] = None,
    class_id: Annotated[
        int | None, typer.Option("--class", help="Only the placement class of this id.")
    ] = None,
    order: Annotated[Order, typer.Option(help="The oldest first, or the most.")] = Order.OLDEST,
    limit: Annotated[int, typer.Option(min=1, help="At most this many.")] = 50,
) -> None:
    """Show why leases are pending: how many nodes match each kind, how many are free, what to mend.

    One line stands for all leases that ask the same (a placement class).
    """
    with Client(connection_string(ctx), pool_size=1) as client:
        found = client.pending_reasons(
            queue=queue, kind=kind, class_id=class_id, order=order, limit=limit
        )
    show_items(ctx, found, _row, empty="nothing of this kind is pending")


def _row(reason: PendingReason) -> dict[str, object]:
    return {
        "class": reason.class_id,
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
