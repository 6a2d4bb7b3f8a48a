"""The fleet: nodes as a table and as a map, and one node."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from hwqueue.dashboard import formatting
from hwqueue.dashboard.auth import protected
from hwqueue.dashboard.history import SPANS, gpu_charts, waits_chart
from hwqueue.dashboard.ids import class_number
from hwqueue.dashboard.pages.asked import number, one_of
from hwqueue.dashboard.reads import reads
from hwqueue.dashboard.render import page
from hwqueue.types import NodeClaim, NodeCore, NodeGpu, NodeGroup, NodeUsage

PAGE_SIZE = 50
STATES = ("live", "silent", "cordoned", "draining")
SORTS = ("worst", "name", "rack", "use", "gpu", "claims")
WORST = ("silent", "draining", "cordoned", "live")
NO_RACK = "-"
SHOWN_CLAIMS = 200
WORTH_POINTS = (25, 50, 75, 100)  # per cent of a device that are left


def rack_of(row: NodeUsage) -> str:
    """Where a node is on the map."""
    return NO_RACK if row.rack is None else str(row.rack)


def use_of(row: NodeUsage) -> int:
    """How much of a node's scarcest resource is in use, in per cent."""
    parts = [
        (row.cpu_used, row.cpu_milli),
        (row.memory_used, row.memory_mib),
        (row.gpu_milli_used, row.gpus * 1000),
        (row.claims, row.slots),
    ]
    return min(100, max((round(100 * used / total) for used, total in parts if total), default=0))


@protected("/fleet")
async def fleet(request: Request) -> Response:
    """All nodes: a table, or a map of the racks."""
    asked = request.query_params
    state, rack, label = asked.get("state", ""), asked.get("rack", ""), asked.get("label", "")
    name, view = asked.get("name", "").strip(), asked.get("view", "table")
    sort, at = one_of(request, "sort", SORTS, "worst"), number(request)
    source = reads(request)
    cached = await source.nodes()
    tags = await source.tags(label or None)
    planner = await source.planner()
    rows = [
        row
        for row in cached.value
        if state in ("", row.state) and rack in ("", rack_of(row)) and name.lower() in row.node_name.lower()
    ]
    rows.sort(key=lambda row: formatting.natural(row.node_name))
    keys: Mapping[str, Any] = {
        "worst": lambda row: WORST.index(row.state),
        "rack": lambda row: -1 if row.rack is None else row.rack,
        "use": lambda row: -use_of(row),
        "gpu": lambda row: -(row.gpus_free or 0),
        "claims": lambda row: -row.claims,
    }
    if sort in keys:
        rows.sort(key=keys[sort])
    return page(
        request,
        "fleet.html",
        "Fleet",
        read=[cached, tags, planner],
        live=10,
        planner=planner.value,
        worth_points=WORTH_POINTS,
        map=view == "map",
        view=view if view == "map" else "table",
        rows=rows[at * PAGE_SIZE : (at + 1) * PAGE_SIZE],
        total=len(rows),
        all_nodes=len(cached.value),
        number=at,
        page_size=PAGE_SIZE,
        states=STATES,
        counts=Counter(row.state for row in cached.value),
        state=state,
        rack=rack,
        name=name,
        label=label,
        fit=asked.get("fit", ""),
        tags=tags.value,
        query={"state": state, "rack": rack, "name": name, "label": label, "sort": sort},
        sort=sort,
        use_of=use_of,
    )


@protected("/fleet/history")
async def fleet_history(request: Request) -> Response:
    """GPUs by model and what waits by reason, as upkeep has sampled them."""
    span = one_of(request, "span", tuple(SPANS), "3 h")
    source = reads(request)
    gpus, waits = await asyncio.gather(
        source.history("gpus", SPANS[span]), source.history("waits", SPANS[span])
    )
    return page(
        request,
        "fleet_history.html",
        "Fleet over time",
        read=[gpus, waits],
        live=60,
        charts=True,
        span=span,
        spans=SPANS,
        gpus=gpu_charts(gpus.value),
        waits=waits_chart(waits.value),
    )


@protected("/fleet/map.json")
async def fleet_map(request: Request) -> Response:
    """The map's data, a column for each property, so that 10,000 nodes are small."""
    cached = await reads(request).nodes()
    made = sorted(cached.value, key=lambda row: formatting.natural(row.node_name))
    return JSONResponse(
        {
            "as_of": formatting.iso(cached.at),
            "name": [row.node_name for row in made],
            "rack": [rack_of(row) for row in made],
            "state": [STATES.index(row.state) for row in made],
            "use": [use_of(row) for row in made],
            "gpus": [row.gpus for row in made],
            "free": [row.gpus_free or 0 for row in made],
            "claims": [row.claims for row in made],
        },
        headers={"Cache-Control": "private, no-cache"},
    )


@protected("/fleet/fit/{class_id}")
async def fleet_fit(request: Request) -> Response:
    """What every node is to a placement class: 0 takes it now, 1 is full, 2 one rule away, 3 no."""
    cached = await reads(request).fit(class_number(request.path_params["class_id"]))
    return JSONResponse(
        {
            "as_of": formatting.iso(cached.at),
            "name": [name for group in cached.value for name in group.node_names],
            "verdict": [verdict(group) for group in cached.value for _ in group.node_names],
            "rule": [next(iter(group.codes), "") for group in cached.value for _ in group.node_names],
        },
        headers={"Cache-Control": "private, no-cache"},
    )


def verdict(group: NodeGroup) -> int:
    """How near nodes are to taking a class."""
    if group.eligible:
        return 0
    if not group.permanent:
        return 1
    return 2 if len(group.codes) == 1 else 3


@dataclass(frozen=True, slots=True)
class Device:
    """A device of a node, its parts, and the leases that hold it."""

    device: NodeGpu
    holders: tuple[NodeClaim, ...]
    parts: tuple[Device, ...] = ()


def devices(gpus: Sequence[NodeGpu], claims: Sequence[NodeClaim]) -> list[Device]:
    """The devices of a node with what holds each, parts inside what they are parts of."""
    holders: dict[UUID, list[NodeClaim]] = defaultdict(list)
    for claim in claims:
        for assigned in claim.assignment.gpus if claim.assignment else ():
            holders[assigned.resource_id].append(claim)
    parts: dict[UUID, list[Device]] = defaultdict(list)
    for gpu in gpus:
        if gpu.parent_resource_id is not None:
            held = Device(gpu, tuple(holders[gpu.resource_id]))
            parts[gpu.parent_resource_id].append(held)
    return [
        Device(gpu, tuple(holders[gpu.resource_id]), tuple(parts[gpu.resource_id]))
        for gpu in gpus
        if gpu.parent_resource_id is None
    ]


def cores(
    found: Sequence[NodeCore], claims: Sequence[NodeClaim]
) -> dict[int, list[tuple[NodeCore, NodeClaim | None]]]:
    """The cores of a node by NUMA node, each with the oldest claim that has it."""
    holders = {
        core: claim
        for claim in reversed(claims)
        for core in (claim.assignment.cores if claim.assignment else None) or ()
    }
    made: dict[int, list[tuple[NodeCore, NodeClaim | None]]] = defaultdict(list)
    for each in found:
        made[each.numa].append((each, holders.get(each.core)))
    return dict(sorted(made.items()))


@protected("/nodes/{node:path}")
async def node(request: Request) -> Response:
    """One node: what it is, what is in use and by whom, and what happened to it."""
    source = reads(request)
    found = await source.node(request.path_params["node"])
    claims = await source.node_claims(found.node_id, limit=SHOWN_CLAIMS)
    usage = await source.nodes()
    row = next((each for each in usage.value if each.node_id == found.node_id), None)
    return page(
        request,
        "node.html",
        f"Node {found.name}",
        node=found,
        state=found.state,
        usage=row,
        claims=claims,
        shown_claims=SHOWN_CLAIMS,
        devices=devices(found.gpus, claims),
        cores=cores(found.cores, claims),
        holds=holds,
        tainted=any(taint.by == "operator" for taint in found.taints),
        events=await source.events(node_id=found.node_id, limit=50),
    )


def holds(claim: NodeClaim) -> str:
    """What is set aside for a claim, in words."""
    given = claim.assignment
    if given is None:
        return "-"
    amounts = {"cpu_milli": given.cpu_milli, "memory_mib": given.memory_mib, **given.custom}
    if given.gpus:
        amounts["gpu_milli"] = given.gpu_milli * len(given.gpus)
    text = formatting.asks({name: amount for name, amount in amounts.items() if amount})
    classes = (given.cpu_isolation, given.gpu_exclusivity)
    alone = [each for each in classes if each not in (None, "best_effort", "shared")]
    return ", ".join([text or "a slot", *alone])
