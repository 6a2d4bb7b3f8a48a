"""Runs of workflows: the list, one run, and the items of a step."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import get_args
from uuid import UUID

from starlette.requests import Request
from starlette.responses import Response

from hwqueue.dashboard.auth import protected
from hwqueue.dashboard.formatting import error_line, pretty
from hwqueue.dashboard.forms import pairs
from hwqueue.dashboard.ids import as_id, uuid_or_none
from hwqueue.dashboard.pages.asked import Listing, number
from hwqueue.dashboard.pages.pending import why_context
from hwqueue.dashboard.reads import Reads, RunView, reads
from hwqueue.dashboard.render import page
from hwqueue.dashboard.runs.graph import Graph, Step, graph_of, state_word
from hwqueue.dashboard.runs.says import says_of
from hwqueue.dashboard.runs.timeline import timeline_of
from hwqueue.errors import ClassUnknown
from hwqueue.types import ClassExplanation, RunState, StepResult, StepState

STATES = get_args(RunState)
TEXT_FILTERS = ("workflow", "label")
MOST_ROWS = 500
MOST_SIGNALS = 50  # and most steps that wait for some
MOST_CLASSES = 12  # whose nodes a page looks for
ITEMS = 100
ITEM_STATES: dict[str, StepState] = {
    each: each for each in get_args(StepState) if each not in ("waiting", "skipped")
}
LONGEST = 160


@protected("/runs")
async def runs(request: Request) -> Response:
    """Runs, newest first, a page at a time."""
    listing = Listing.of(request, STATES, TEXT_FILTERS)
    rows, progress = await reads(request).runs(
        workflow=listing.filters["workflow"] or None,
        state=listing.state or None,
        labels=dict(pairs(listing.filters["label"], "label")) or None,
        before=uuid_or_none(request.query_params.get("before")),
        limit=listing.size + 1,
    )
    return page(request, "runs.html", "Runs", progress=progress, **listing.shown(rows))


@protected("/runs/{run}")
async def run(request: Request) -> Response:
    """One run: what it waits for, its graph, its steps, their times."""
    view, graph, names = await _view(request)
    layer, shown = _shown(request, graph)
    now = datetime.now(UTC)
    return page(
        request,
        "run.html",
        f"Run of {view.run.workflow}",
        run=view.run,
        defined=view.definition.version,
        progress=view.progress,
        graph=graph,
        says=says_of(view.run, graph.steps, names),
        timeline=timeline_of(view.run, shown, now),
        shown=shown,
        layer=layer,
        names=names,
        fits=None,
        waits=_waits(graph),
        signals=view.signals,
        kept=sum(signal.taken_by is None for signal in view.signals),
        most_signals=MOST_SIGNALS,
        events=await reads(request).run_events(view.run),
        now=now,
    )


@protected("/runs/{run}/why")
async def why(request: Request) -> Response:
    """Why the run waits: loaded after its page, since it looks at the whole fleet."""
    view, graph, names = await _view(request)
    says = says_of(view.run, graph.steps, names)
    lease_id = says.waits_for.row.lease_id if says.waits_for and says.waits_for.row else None
    explained = await reads(request).explain_lease(lease_id) if lease_id else None
    return page(
        request,
        "run_why.html",
        "What it waits for",
        read=[explained] if explained else [],
        live=0,
        run=view.run,
        says=says,
        why=explained.value if explained else None,
        **why_context(),
    )


@protected("/runs/{run}/steps")
async def steps(request: Request) -> Response:
    """The steps with the nodes that each may run on: loaded after the page, as the reasons are."""
    view, graph, names = await _view(request)
    layer, shown = _shown(request, graph)
    return page(
        request,
        "run_steps.html",
        "Steps",
        live=0,
        run=view.run,
        graph=graph,
        shown=shown,
        layer=layer,
        names=names,
        fits=await fits_of(reads(request), shown),
    )


async def _view(request: Request) -> tuple[RunView, Graph, Mapping[UUID, str]]:
    source = reads(request)
    run_id = as_id("run", request.path_params["run"])
    view, nodes = await asyncio.gather(source.run_view(run_id), source.node_names())
    return view, graph_of(view.definition.spec, view.steps, view.details), nodes.value


def _waits(graph: Graph) -> list[Step]:
    """The steps that wait for signals: those that are open first, those that have ended last."""
    waits = [step for step in graph.steps if step.kind == "wait"]
    return sorted(waits, key=lambda step: (step.has_ended, step.state != "running", step.no))


def _shown(request: Request, graph: Graph) -> tuple[int | None, Sequence[Step]]:
    """The steps in the tables: all that are drawn, else those of a layer, the one asked for or the
    first with a step that has not ended.
    """
    if graph.is_drawn:
        return None, graph.steps
    layers = graph.layers()
    asked = request.query_params.get("layer", "")
    layer = next((number for number, row in enumerate(layers) if any(not s.has_ended for s in row)), 0)
    if asked.isdecimal() and int(asked) < len(layers):
        layer = int(asked)
    return layer, layers[layer][:MOST_ROWS]


async def fits_of(source: Reads, steps: Sequence[Step]) -> dict[int, ClassExplanation]:
    """What nodes are to the classes of steps that have not ended, those that wait for a node first.

    The same reasons as of a lease. At most `MOST_CLASSES`: each looks at the whole fleet.
    """
    order = {"pending": 0, "scheduled": 1, "waiting": 2, "running": 3}
    open_steps = sorted(
        (step for step in steps if step.detail and not step.has_ended),
        key=lambda step: (order.get(step.state or "", 9), step.no),
    )
    classes = (step.detail.class_id for step in open_steps if step.detail)
    wanted = [each for each in dict.fromkeys(classes) if each is not None]

    async def ask(class_id: int) -> ClassExplanation | None:
        try:
            return (await source.explain_class(class_id)).value
        except ClassUnknown:  # the run has ended since, and so has its class
            return None

    told = await asyncio.gather(*(ask(each) for each in wanted[:MOST_CLASSES]))
    return {each: found for each, found in zip(wanted, told, strict=False) if found}


@protected("/runs/{run}/steps/{step}")
async def items(request: Request) -> Response:
    """The items of a step by their numbers, a page at a time."""
    run_id = as_id("run", request.path_params["run"])
    step = request.path_params["step"]
    state = ITEM_STATES.get(request.query_params.get("state", ""))
    after = min(number(request, "after", -1), 999_999)
    view = await reads(request).step_items(run_id, step, state, after=after, limit=ITEMS + 1)
    rows = view.items[:ITEMS]
    return page(
        request,
        "items.html",
        f"Items of {step}",
        run=view.run,
        step=view.step,
        rows=[(row, state_word(row), _returned(row)) for row in rows],
        nodes=len({row.node_id for row in rows} - {None}),
        more=len(view.items) > ITEMS,
        paged=after >= 0,
        states=ITEM_STATES,
        state=state or "",
    )


def _returned(row: StepResult) -> str:
    """The error or the result in one line, shortened; what looks like a secret is left out."""
    if row.error is not None:
        text = error_line(row.error)
    else:
        text = "" if row.result is None else " ".join(pretty(row.result).split())
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
