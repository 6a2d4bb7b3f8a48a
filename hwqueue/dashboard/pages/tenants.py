"""Tenants: what they use beside what they may, and who was asked to stop for whom."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from hwqueue.dashboard.auth import protected
from hwqueue.dashboard.pages.asked import number
from hwqueue.dashboard.reads import reads
from hwqueue.dashboard.render import page

PAGE_SIZE, SHOWN_STOPS = 50, 20


@protected("/tenants")
async def tenants(request: Request) -> Response:
    """Every tenant, the busiest first; those without a row, too, while they have leases."""
    source, at = reads(request), number(request)
    cached, nodes, limits, stops = await asyncio.gather(
        source.tenants(), source.nodes(), source.limits(), source.preemptions(limit=SHOWN_STOPS)
    )
    names = await source.node_names()
    return page(
        request,
        "tenants.html",
        "Tenants",
        read=[cached, nodes, limits],
        rows=cached.value[at * PAGE_SIZE : (at + 1) * PAGE_SIZE],
        total=len(cached.value),
        number=at,
        page_size=PAGE_SIZE,
        nodes=Counter(name for each in nodes.value for name in each.tenants),
        weighed=[each.name for each in limits.value if by_weights_of_tenants(each.spec)],
        stops=stops,
        names=names.value,
    )


@protected("/tenants/{tenant:path}")
async def tenant(request: Request) -> Response:
    """One tenant: what it uses, its logins and nodes, and whom it stopped or gave way to."""
    name, source = request.path_params["tenant"], reads(request)
    cached, nodes, rows, stops = await asyncio.gather(
        source.tenants(),
        source.nodes(),
        source.tenant_rows(name=name),
        source.preemptions(tenant=name, limit=SHOWN_STOPS),
    )
    names = await source.node_names()
    row = next((each for each in cached.value if each.tenant == name), None)
    return page(
        request,
        "tenant.html",
        f"Tenant {name}",
        read=[cached, nodes],
        status=200 if row or rows else 404,
        name=name,
        row=row,
        own=rows[0] if rows else None,
        nodes=[each for each in nodes.value if name in each.tenants],
        stops=stops,
        names=names.value,
    )


def by_weights_of_tenants(spec: Mapping[str, Any]) -> bool:
    """Whether a limit lets tenants take turns by the weights that they have."""
    return spec.get("fair") is True and spec.get("by") == "tenant" and "weights" not in spec
