"""Limits: how many leases run at once, how many start in a time, whose turn it is."""

from datetime import timedelta
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query

from hwqueue.server.dependencies import AuthenticatedRoute
from hwqueue.server.models import limits as models
from hwqueue.server.models.base import Name
from hwqueue.server.routers.shared import NO_LIMIT, Admin, Operator, Reader

router = APIRouter(route_class=AuthenticatedRoute, prefix="/limits", tags=["limits"])

PathName = Annotated[Name, Path(description="Name of the limit.", examples=["openai"])]


@router.get("", response_model=models.Limits)
async def list_limits(caller: Reader) -> Any:
    """The limits, and how much of each is in use."""
    async with caller.read() as client:
        return {"items": await client.list_limits()}


@router.post("", status_code=201, responses={409: {"description": "It is there with another one."}})
async def create_limit(body: models.CreateLimit, caller: Admin) -> models.LimitNow:
    """Make a limit; one that is there with the same specification is left as it is."""
    async with caller.call() as client:
        created = await client.create_limit(body.name, body.spec)
    return models.LimitNow(name=body.name, changed=created)


@router.patch("/{limit:limit}", responses=NO_LIMIT)
async def set_limit(limit: PathName, body: models.SetLimit, caller: Admin) -> models.LimitSpec:
    """Change keys of its specification; fewer slots stop nothing that runs."""
    async with caller.call() as client:
        spec = await client.set_limit(limit, body.changes)
    return models.LimitSpec(name=limit, spec=spec)


@router.delete("/{limit:limit}")
async def drop_limit(limit: PathName, caller: Admin) -> models.LimitNow:
    """Drop it; what waits for it goes on without."""
    async with caller.call() as client:
        dropped = await client.drop_limit(limit)
    return models.LimitNow(name=limit, changed=dropped)


@router.post("/{limit:limit}/throttle", responses=NO_LIMIT)
async def throttle_limit(limit: PathName, body: models.ThrottleLimit, caller: Operator) -> models.Throttled:
    """Let nothing pass its lane, or that of a key, for a while; or open it."""
    span = None if body.retry_after is None else timedelta(seconds=body.retry_after)
    async with caller.call() as client:
        closed_until = await client.throttle_limit(
            limit, body.key, until=body.until, retry_after=span, tenant=body.tenant
        )
    return models.Throttled(closed_until=closed_until)


@router.get("/{limit:limit}/lanes", response_model=models.LimitLanes, responses=NO_LIMIT)
async def limit_lanes(
    *,
    limit: PathName,
    caller: Reader,
    order: Annotated[Literal["parked", "wait"], Query(description="wait: longest wait first.")] = "parked",
    most: Annotated[int, Query(alias="limit", ge=1, le=1000)] = 100,
) -> Any:
    """Its lanes in which most leases wait."""
    async with caller.read() as client:
        return {"items": await client.limit_lanes(limit, order=order, limit=most)}
