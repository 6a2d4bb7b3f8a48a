"""Workflows: the definitions, and one with its graph."""

from __future__ import annotations

import asyncio
from collections import Counter

from starlette.requests import Request
from starlette.responses import Response

from hwqueue.dashboard.auth import protected
from hwqueue.dashboard.cache import Cached
from hwqueue.dashboard.charts import run_bars
from hwqueue.dashboard.pages.pending import glyph_of
from hwqueue.dashboard.reads import reads
from hwqueue.dashboard.render import page
from hwqueue.dashboard.runs.graph import count_states, graph_of
from hwqueue.errors import BadArgument, HwqueueError, WorkflowUnknown
from hwqueue.types import CheckedStep, WorkflowVersion

PAGE = 50
SHOWN_RUNS = 50
MOST_ROWS = 500


@protected("/workflows")
async def workflows(request: Request) -> Response:
    """Every workflow with its newest version, and how its runs went."""
    after = request.query_params.get("after") or None
    rows, versions = (await reads(request).workflows(after, PAGE + 1)).value
    counts = {name: run_counts(each) for name, each in versions.items()}
    troubled = {
        name: sum(count for state, count in each if state in ("failed", "failing"))
        for name, each in counts.items()
    }
    return page(
        request,
        "workflows.html",
        "Workflows",
        rows=sorted(rows[:PAGE], key=lambda row: (-troubled[row.workflow], row.workflow)),
        last=rows[:PAGE][-1].workflow if rows else "",
        more=len(rows) > PAGE,
        paged=after is not None,
        versions=versions,
        counts=counts,
    )


def run_counts(versions: list[WorkflowVersion]) -> list[tuple[str, int]]:
    """How many runs of all versions are in each state."""
    total: Counter[str] = Counter()
    for each in versions:
        total.update(each.run_counts)
    return count_states(total)


@protected("/workflows/{workflow}")
async def workflow(request: Request) -> Response:
    """One definition: its graph, its versions, where its runs are."""
    name, version = _asked(request)
    source = reads(request)
    (found, versions), runs = await asyncio.gather(
        source.workflow(name, version), source.last_runs(name, SHOWN_RUNS)
    )
    graph = graph_of(found.spec)
    return page(
        request,
        "workflow.html",
        f"Workflow {name}",
        live=10,
        workflow=found,
        read=[runs],
        run_bars=run_bars(runs.value, runs.at),
        newest=max((each.version or 0 for each in versions), default=0),
        versions=versions,
        counts=run_counts(versions),
        graph=graph,
    )


def _asked(request: Request) -> tuple[str, int | None]:
    """The name and the version that a page is about. Raises: BadArgument."""
    text = request.query_params.get("version", "")
    if text and not (text.isdecimal() and 0 < int(text) < 2**31):
        raise BadArgument(f"{text[:20]!r} is no version", hint="versions are numbers from 1")
    return request.path_params["workflow"], int(text) if text else None


@protected("/workflows/{workflow}/where")
async def where(request: Request) -> Response:
    """Where each step may run: loaded after the page, since it looks at the whole fleet."""
    name, version = _asked(request)
    checked: Cached[list[CheckedStep]] | None = None
    problem = ""
    try:
        checked = await reads(request).checked_steps(name, version)
    except WorkflowUnknown:
        raise
    except HwqueueError as error:  # a queue that is gone, a task whose defaults contradict a step
        problem = str(error)
    return page(
        request,
        "workflow_where.html",
        "Where each step may run",
        read=[checked] if checked else [],
        live=0,
        name=name,
        steps=checked.value[:MOST_ROWS] if checked else [],
        problem=problem,
        glyph_of=glyph_of,
    )
