"""The items of a step of a run: of a map, or those that its handler has added."""

from __future__ import annotations

from typing import get_args

from starlette.requests import Request
from starlette.responses import Response

from hwqueue.dashboard.auth import protected
from hwqueue.dashboard.formatting import error_line, pretty
from hwqueue.dashboard.ids import as_id
from hwqueue.dashboard.pages.asked import number
from hwqueue.dashboard.reads import reads
from hwqueue.dashboard.render import page
from hwqueue.types import StepResult, StepState

PAGE_SIZE = 100
STATES: dict[str, StepState] = {
    each: each for each in get_args(StepState) if each not in ("waiting", "skipped")
}
LONGEST = 160


@protected("/runs/{run}/steps/{step}")
async def items(request: Request) -> Response:
    """The items of a step by their numbers, a page at a time."""
    run_id = as_id("run", request.path_params["run"])
    step = request.path_params["step"]
    state = STATES.get(request.query_params.get("state", ""))
    after = min(number(request, "after", -1), 999_999)
    view = await reads(request).step_items(run_id, step, state, after=after, limit=PAGE_SIZE + 1)
    rows = view.items[:PAGE_SIZE]
    return page(
        request,
        "items.html",
        f"Items of {step}",
        run=view.run,
        step=view.step,
        rows=[(row, _shown(row), _returned(row)) for row in rows],
        nodes=len({row.node_id for row in rows} - {None}),
        more=len(view.items) > PAGE_SIZE,
        paged=after >= 0,
        states=STATES,
        state=state or "",
    )


def _shown(row: StepResult) -> str:
    """The item's state; while its lease waits for a node, the lease's."""
    waits = row.state == "running" and row.lease_state in ("pending", "scheduled")
    return str(row.lease_state) if waits else row.state


def _returned(row: StepResult) -> str:
    """The error or the result in one line, shortened; what looks like a secret is left out."""
    if row.error is not None:
        text = error_line(row.error)
    else:
        text = "" if row.result is None else " ".join(pretty(row.result).split())
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
