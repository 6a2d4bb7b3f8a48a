"""Workflows: the definitions, and one with its graph."""

from __future__ import annotations

from collections import Counter

from starlette.requests import Request
from starlette.responses import Response

from hwqueue.dashboard.auth import protected
from hwqueue.dashboard.reads import reads
from hwqueue.dashboard.render import page
from hwqueue.dashboard.runs.graph import count_states, graph_of
from hwqueue.errors import BadArgument
from hwqueue.types import WorkflowVersion

PAGE = 50


async def workflows(request: Request) -> Response:
    """Every workflow with its newest version, and how its runs went."""
    after = request.query_params.get("after") or None
    rows, versions = await reads(request).workflows(after, PAGE + 1)
    return page(
        request,
        "workflows.html",
        "Workflows",
        rows=rows[:PAGE],
        more=len(rows) > PAGE,
        paged=after is not None,
        versions=versions,
        counts={name: run_counts(each) for name, each in versions.items()},
    )


def run_counts(versions: list[WorkflowVersion]) -> list[tuple[str, int]]:
    """How many runs of all versions are in each state."""
    total: Counter[str] = Counter()
    for each in versions:
        total.update(each.run_counts)
    return count_states(total)


async def workflow(request: Request) -> Response:
    """One definition: its graph, its versions, where its runs are."""
    name, text = request.path_params["workflow"], request.query_params.get("version", "")
    if text and not (text.isdecimal() and 0 < int(text) < 2**31):
        raise BadArgument(f"{text[:20]!r} is no version", hint="versions are numbers from 1")
    found, versions = await reads(request).workflow(name, int(text) if text else None)
    graph = graph_of(found.spec)
    return page(
        request,
        "workflow.html",
        f"Workflow {name}",
        live=10,
        workflow=found,
        newest=max((each.version or 0 for each in versions), default=0),
        versions=versions,
        counts=run_counts(versions),
        graph=graph,
    )


ROUTES = [
    protected("/workflows", workflows),
    protected("/workflows/{workflow}", workflow),
]
