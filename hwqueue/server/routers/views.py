"""What operators look at: counts by class, queue and node."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query

from hwqueue import types
from hwqueue.server.dependencies import AuthenticatedRoute
from hwqueue.server.models.base import Id, Name
from hwqueue.server.models.derived import list_of
from hwqueue.server.pagination import Paged
from hwqueue.server.routers.shared import NO_LEASE, NO_QUEUE, LeaseReader, Reader

router = APIRouter(route_class=AuthenticatedRoute, tags=["views"])

Limit = Annotated[int, Query(ge=1, le=1000)]


@router.get("/pending", response_model=list_of(types.PendingReason), responses=NO_QUEUE)
async def pending_reasons(
    *,
    caller: Reader,
    queue: Name | None = None,
    kind: Annotated[
        Literal["no_match", "contended"] | None,
        Query(description="no_match: no live node could ever; contended: none can now."),
    ] = None,
    order: Literal["oldest", "pending"] = "oldest",
    limit: Limit = 100,
) -> Any:
    """Placement classes with leases ready, and what keeps them from running."""
    async with caller.read() as client:
        found = await client.pending_reasons(queue=queue, kind=kind, order=order, limit=limit)
    return {"items": found}


@router.get("/queue-depth", response_model=list_of(types.QueueDepth), responses=NO_QUEUE)
async def queue_depth(caller: Reader, queue: Name | None = None) -> Any:
    """What waits and runs in each queue, by name."""
    async with caller.read() as client:
        return {"items": await client.queue_depth(queue=queue)}


@router.get("/fleet-history", response_model=list_of(types.FleetSample))
async def fleet_history(
    caller: Reader,
    kind: Literal["gpus", "waits"],
    minutes: Annotated[int, Query(ge=1, le=50400)] = 180,
) -> Any:
    """How full the fleet was, by GPU model, or what waited, by reason; oldest first."""
    async with caller.read() as client:
        return {"items": await client.fleet_history(kind, minutes=minutes)}


@router.get("/throughput", response_model=list_of(types.Minute), responses=NO_QUEUE)
async def throughput(
    caller: Reader,
    queue: Name | None = None,
    minutes: Annotated[int, Query(ge=1, le=1440)] = 60,
) -> Any:
    """What ended in each of the last minutes, oldest first; the last one is not over."""
    async with caller.read() as client:
        return {"items": await client.throughput(queue, minutes=minutes)}


@router.get("/node-usage", response_model=list_of(types.NodeUsage, pages=True))
async def node_usage(
    *,
    caller: Reader,
    page: Paged,
    state: Literal["live", "silent", "cordoned", "draining"] | None = None,
    limit: Limit = 100,
    after: Annotated[
        str | None,
        Query(min_length=1, max_length=253, description="Cursor: `next` of the page before."),
    ] = None,
) -> Any:
    """What nodes have and what of it is in use, by name."""
    async with caller.read() as client:
        found = await client.node_usage(state=state, after=after, limit=limit + 1)
    return page.of(found, limit, lambda row: row.node_name, name="after")


@router.get("/labels", response_model=list_of(types.TagCount))
async def tag_distribution(
    caller: Reader,
    label: Annotated[str | None, Query(min_length=1, max_length=253)] = None,
    limit: Limit = 100,
) -> Any:
    """How many nodes have each value of a label, or of all; the commonest first."""
    async with caller.read() as client:
        return {"items": await client.tag_distribution(label=label, limit=limit)}


@router.get("/classes", response_model=list_of(types.ClassStats, pages=True), responses=NO_QUEUE)
async def placement_class_stats(
    *,
    caller: Reader,
    page: Paged,
    queue: Name | None = None,
    limit: Limit = 100,
    after: Annotated[
        int | None, Query(ge=0, le=2**63 - 1, description="Cursor: `next` of the page before.")
    ] = None,
) -> Any:
    """Placement classes with what waits and runs of each, by id."""
    async with caller.read() as client:
        found = await client.placement_class_stats(queue=queue, after=after, limit=limit + 1)
    return page.of(found, limit, lambda row: row.class_id, name="after")


@router.get(
    "/leases/{lease_id:uuid}/history",
    response_model=list_of(types.LeaseEvent),
    responses=NO_LEASE,
)
async def lease_history(lease_id: Id, caller: LeaseReader) -> Any:
    """The life line of a lease, oldest first."""
    async with caller.call() as client:
        return {"items": await client.lease_history(lease_id)}
