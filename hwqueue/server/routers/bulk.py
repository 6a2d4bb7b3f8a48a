"""Many leases at once: those of a queue that a filter means, a page in each request."""

from typing import Any

from fastapi import APIRouter

from hwqueue.server.dependencies import AuthenticatedRoute, Caller
from hwqueue.server.models import leases as models
from hwqueue.server.routers.shared import (
    NO_QUEUE,
    LeaseOperator,
    LeaseReader,
    LeaseWriter,
)

router = APIRouter(route_class=AuthenticatedRoute, prefix="/leases", tags=["leases"])


@router.post("/count", response_model=models.BulkCounted, responses=NO_QUEUE)
async def count_leases(body: models.BulkCount, caller: LeaseReader) -> Any:
    """Count what a filter means, a page at a time: what a bulk call would change.

    Add up the pages until `next_cursor` is null.
    """
    async with caller.read() as client:
        return await client.count_page(
            states=body.states,
            cursor=body.cursor,
            page_size=body.limit,
            **_wanted(body.filter, caller),
        )


@router.post("/cancel", response_model=models.BulkChanged, responses=NO_QUEUE)
async def cancel_leases(body: models.BulkCancel, caller: LeaseWriter) -> Any:
    """Cancel one page of what a filter means; running leases are asked to stop.

    Without a state all that wait or run. Send `next_cursor` as `cursor`, with the same filter,
    until it is null. `skipped`: another session holds them. So do all bulk calls.
    """
    async with caller.call() as client:
        return await client.change_page("cancel", reason=body.reason, **_page(body, caller))


@router.post("/requeue", response_model=models.BulkChanged, responses=NO_QUEUE)
async def requeue_leases(body: models.BulkRequest, caller: LeaseOperator) -> Any:
    """Requeue one page of what a filter means: failed leases, or with that state cancelled ones."""
    async with caller.call() as client:
        return await client.change_page("requeue", **_page(body, caller))


@router.post("/update", response_model=models.BulkChanged, responses=NO_QUEUE)
async def update_leases(body: models.BulkUpdate, caller: LeaseWriter) -> Any:
    """Change one page of the waiting leases that a filter means, or move them to another queue.

    `skipped` also names leases that cannot be in that queue.
    """
    changes: Any = await caller.run(lambda: body.changes.model_dump(exclude_unset=True))
    async with caller.call() as client:
        return await client.change_page("update", changes=changes, **_page(body, caller))


@router.post("/delete", response_model=models.BulkChanged, responses=NO_QUEUE)
async def delete_leases(body: models.BulkRequest, caller: LeaseOperator) -> Any:
    """Delete one page of the finished leases that a filter means, with results and attempts."""
    async with caller.call() as client:
        return await client.change_page("delete", **_page(body, caller))


def _page(body: models.BulkRequest, caller: Caller) -> dict[str, Any]:
    """What all bulk calls take. Raises: HTTPProblem (403)."""
    return {"cursor": body.cursor, "page_size": body.limit, **_wanted(body.filter, caller)}


def _wanted(given: models.LeaseFilter, caller: Caller) -> dict[str, Any]:
    """The filter with the tenant of the caller. Raises: HTTPProblem (403)."""
    wanted = given.model_dump(exclude_none=True)
    wanted["tenant"] = caller.own_tenant(wanted.get("tenant"), "filter.tenant")
    return wanted
