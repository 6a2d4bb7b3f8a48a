"""hwqueue workflow results: what a step returned, item by item, and where each ran."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from hwqueue.cli.connect import open_client
from hwqueue.cli.failures import error_line
from hwqueue.cli.inputs import identifier
from hwqueue.cli.output import plain_text, say, show_items
from hwqueue.text import duration
from hwqueue.types import StepResult, StepState

EXAMPLE = "hwqueue workflow results 01890a5d-ac96-774b-bcce-b302099a8057 score --state failed --limit 20"

_LONGEST = 60


def results(
    ctx: typer.Context,
    run_id: Annotated[str, typer.Argument(help="Id of the run.")],
    step: Annotated[str, typer.Argument(help="Name of the step.")],
    *,
    state: Annotated[StepState | None, typer.Option(help="Only in this state.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most this many.")] = 100,
    after: Annotated[int, typer.Option(min=-2, help="Behind this item: the last of the page before.")] = -1,
) -> None:
    """Show what a step returned: one row, or one for each item of a map that is spawned.

    Results and errors are shortened; with --json they are whole. With --after -2 a step with items
    tells of itself, as item -1.
    """
    wanted = identifier(run_id, "RUN_ID")
    with open_client(ctx) as client:
        found = client.step_results(wanted, step, after=after, limit=limit, state=state)
    show_items(ctx, found, _row, empty="no such items")
    if len(found) == limit and found[-1].item > 0:
        say(ctx, f"there may be more: --after {found[-1].item}")


def _row(item: StepResult) -> dict[str, Any]:
    waits = item.lease_state in ("pending", "scheduled")
    ended, claimed = item.finished_at, item.claimed_at
    returned = item.result if item.error is None else error_line(item.error)
    return {
        "item": item.item,
        "name": item.name,
        "state": item.lease_state if waits else item.state,
        "node": item.node_name or item.node_id,
        "attempt": item.attempt,
        "lasted": duration(ended - claimed) if ended and claimed else None,
        "returned": None if returned is None else _short(plain_text(returned)),
        "lease_id": item.lease_id,
    }


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
