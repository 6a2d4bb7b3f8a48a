"""Gangs: spawn them, look at them, ask why they wait, cancel them."""

from datetime import UTC, datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Path, Query, Request, Response

from hwqueue.server.dependencies import AuthenticatedRoute, Caller
from hwqueue.server.models import gangs as models
from hwqueue.server.models.base import Id
from hwqueue.server.pagination import Paged
from hwqueue.server.problems import HTTPProblem
from hwqueue.server.routers.shared import (
    NO_GANG,
    NO_QUEUE,
    LeaseReader,
    LeaseWriter,
    own_options,
    warnings_of,
    with_spans,
)
from hwqueue.types import GangState

router = APIRouter(route_class=AuthenticatedRoute, prefix="/gangs", tags=["gangs"])

GangId = Annotated[Id, Path(description="Id of the gang.")]


@router.post(
    "",
    status_code=201,
    response_model=models.SpawnedGang,
    responses={409: {"description": "The id of the gang, or of a lease, is taken."}, **NO_QUEUE},
)
async def spawn_gang(
    body: models.SpawnGangRequest, caller: LeaseWriter, request: Request, response: Response
) -> Any:
    """Spawn a gang: none of its leases is claimed before there is room for all of them."""
    members, options = await caller.run(lambda: _asked(body, caller))
    async with caller.call() as client:
        spawned = await client.spawn_gang(body.queue, members, **options)
    gang_id = spawned[0].gang_id
    response.headers["Location"] = f"{request.url.path}/{gang_id}"
    return {
        "gang_id": gang_id,
        "members": spawned,
        "warnings": await warnings_of(caller, gang_id),
    }


@router.get("", response_model=models.GangPage)
async def list_gangs(
    *,
    caller: LeaseReader,
    page: Paged,
    state: GangState | None = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    before: Annotated[
        str | None,
        Query(
            max_length=100,
            description="Cursor: `next` of the page before, which is the time and the id of its last gang.",
        ),
    ] = None,
) -> Any:
    """Gangs, newest first."""
    moment, gang_id = _read_cursor(before)
    async with caller.read() as client:
        found = await client.list_gangs(state=state, limit=limit + 1, before=moment, before_gang=gang_id)
    return page.of(found, limit, lambda row: f"{row.created_at.isoformat()},{row.gang_id}")


@router.post("/what-if", response_model=models.GangAhead, responses=NO_QUEUE)
async def what_if_gang(body: models.WhatIfGangRequest, caller: LeaseReader) -> Any:
    """Whether a gang would start now if it were spawned, and if not, why; nothing is written."""
    members, options = await caller.run(lambda: _asked(body, caller))
    async with caller.read() as client:
        return await client.what_if_gang(body.queue, members, **options)


@router.get("/{gang_id:uuid}", response_model=models.GangOut, responses=NO_GANG)
async def get_gang(gang_id: GangId, caller: LeaseReader) -> Any:
    """A gang, why it waits, and where its members are."""
    async with caller.call() as client:
        return await client.get_gang(gang_id)


@router.get("/{gang_id:uuid}/explanation", response_model=models.GangWhy, responses=NO_GANG)
async def explain_gang(gang_id: GangId, caller: LeaseReader) -> Any:
    """Why a gang is where it is; of one that waits, where it lacks room, and the ways out."""
    async with caller.read() as client:
        return await client.explain_gang(gang_id)


@router.post("/{gang_id:uuid}/cancel", responses=NO_GANG)
async def cancel_gang(
    gang_id: GangId, caller: LeaseWriter, body: models.CancelGangRequest | None = None
) -> models.GangNow:
    """Cancel a gang: within about a second what waits ends, and what runs is asked to stop.

    The state is `cancelling` until all members have ended. One that has ended stays as it is.
    """
    reason = body.reason if body else None
    async with caller.call() as client:
        state = await client.cancel_gang(gang_id, reason=reason)
    return models.GangNow(gang_id=gang_id, state=state)


def _read_cursor(text: str | None) -> tuple[datetime | None, UUID | None]:
    """The time and the id of the last gang of the page before. Raises: HTTPProblem (422)."""
    if text is None:
        return None, None
    moment, _, gang_id = text.partition(",")
    try:
        return datetime.fromisoformat(moment).astimezone(UTC), UUID(gang_id)
    except (ValueError, OverflowError):
        raise HTTPProblem(
            422,
            f"before is no cursor: {text[:100]!r}",
            field="before",
            hint="give what `next` of the page before says",
        ) from None


def _asked(body: models.SpawnGangRequest, caller: Caller) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The members and the options of a gang, which is of the caller's tenant.

    Raises: HTTPProblem (403).
    """
    options = with_spans(own_options(caller, body.options, "options"))
    members = [
        {
            "task": member.task,
            "params": {} if member.params is None else member.params,
            "count": member.count,
            "options": member.options.model_dump(exclude_none=True, by_alias=True),
        }
        for member in body.members
    ]
    return members, options
