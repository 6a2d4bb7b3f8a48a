"""The jump box: from an id or a name to its page; what it suggests while one types."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from hwqueue.dashboard.auth import protected
from hwqueue.dashboard.ids import uuid_or_none
from hwqueue.dashboard.reads import Reads, reads
from hwqueue.dashboard.render import Links, page
from hwqueue.errors import GangNotFound, LeaseNotFound, RunNotFound

MOST = 20
SUGGESTED = 12
MOST_WORKFLOWS = 500
KINDS = {"node": "nodes", "queue": "queues", "task": "tasks", "workflow": "workflows", "tenant": "tenants"}


@protected("/jump")
async def jump(request: Request) -> Response:
    """To the lease, run, gang, node, queue, task, workflow or tenant; else to what has a name like it."""
    text = request.query_params.get("q", "").strip()
    source, links = reads(request), Links(request)
    lease_id = uuid_or_none(text)
    if lease_id is not None:
        names = await source.node_names()
        if lease_id in names.value:
            return RedirectResponse(links("nodes", names.value[lease_id]), 303)
        for place, find in (("leases", source.lease), ("runs", source.run), ("gangs", source.gang)):
            with suppress(LeaseNotFound, RunNotFound, GangNotFound):
                await find(lease_id)
                return RedirectResponse(links(place, lease_id), 303)
    found = {kind: _like(text, each) for kind, each in (await _names(source)).items()}
    exact = [(kind, text) for kind, each in found.items() if text in each]
    alike = exact or [(kind, name) for kind, each in found.items() for name in each]
    if exact or len(alike) == 1:
        return RedirectResponse(_address(links, *alike[0]), 303)
    shown = {
        KINDS[kind]: [(name, _address(links, kind, name)) for name in each[:MOST]]
        for kind, each in found.items()
        if each
    }
    return page(request, "jump.html", "Jump", live=0, here="", text=text[:200], found=shown)


@protected("/jump/names")
async def suggest(request: Request) -> Response:
    """Names like what is typed, as options: those that begin with it first."""
    text = request.query_params.get("q", "").strip()
    known = await _names(reads(request))
    found = [(name, kind) for kind, each in known.items() for name in _like(text, each)]
    found.sort(key=lambda each: not each[0].lower().startswith(text.lower()))
    return page(request, "names.html", "Names", live=0, found=found[:SUGGESTED])


async def _names(source: Reads) -> dict[str, list[str]]:
    """All that there are, by kind; from what all viewers share."""
    nodes, queues, tasks, pending, flows, tenants = await asyncio.gather(
        source.nodes(),
        source.queues(),
        source.tasks(),
        source.pending(order="pending"),
        source.workflows(None, MOST_WORKFLOWS),
        source.tenants(),
    )
    return {
        "node": sorted(row.node_name for row in nodes.value),
        "queue": [row.queue for row in queues.value],
        "task": sorted({row.task for row in tasks.value} | {row.task_name for row in pending.value}),
        "workflow": [row.workflow for row in flows.value[0]],
        "tenant": sorted(row.tenant for row in tenants.value if row.tenant),
    }


def _like(text: str, names: Sequence[str]) -> list[str]:
    return [name for name in names if text.lower() in name.lower()] if text else []


def _address(links: Links, kind: str, name: str) -> str:
    return links("leases", task=name) if kind == "task" else links(KINDS[kind], name)
