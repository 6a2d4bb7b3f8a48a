"""What routes have in common: who may call them, and what they say of what is not there."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Annotated, Any
from uuid import UUID

import psycopg
from fastapi import Depends, Header, Query, Request, Response
from fastapi.sse import ServerSentEvent
from pydantic import BaseModel, Field

from hwqueue.client._spawn import GANG_SPANS, SPANS
from hwqueue.errors import BadArgument, HwqueueError
from hwqueue.server.auth import authenticate
from hwqueue.server.dependencies import Caller, RequireScope
from hwqueue.server.event_streams import BATCH
from hwqueue.server.problems import HTTPProblem
from hwqueue.server.roles import Scope

_WARNINGS_SECONDS = 2

# Of all tenants at once.
Reader = Annotated[Caller, Depends(RequireScope(Scope.READ))]
Operator = Annotated[Caller, Depends(RequireScope(Scope.OPERATE))]
Admin = Annotated[Caller, Depends(RequireScope(Scope.ADMINISTER))]
Worker = Annotated[Caller, Depends(RequireScope(Scope.WORK))]
Matcher = Annotated[Caller, Depends(RequireScope(Scope.MATCH))]
# An explanation names what other tenants run.
Explainer = Annotated[Caller, Depends(RequireScope(Scope.LEASES_READ))]

# Of one tenant, where the caller has but one.
LeaseReader = Annotated[Caller, Depends(RequireScope(Scope.LEASES_READ, tenants=True))]
LeaseWriter = Annotated[Caller, Depends(RequireScope(Scope.LEASES_WRITE, tenants=True))]
LeaseOperator = Annotated[Caller, Depends(RequireScope(Scope.OPERATE, tenants=True))]

IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=255,
        description="The same key returns the first one if the content is the same, else 422.",
    ),
]

Labelled = Annotated[
    list[Annotated[str, Field(pattern=r"^[^=]+=", max_length=1300)]] | None,
    Query(
        description="Only those with this label, `key=value`; several: with all of them.",
        examples=[["film=7"]],
    ),
]

Responses = dict[int | str, dict[str, Any]]
NO_LEASE: Responses = {404: {"description": "No such lease."}}
NO_QUEUE: Responses = {404: {"description": "No such queue."}}
NO_NODE: Responses = {404: {"description": "No such node."}}
NO_WEBHOOK: Responses = {404: {"description": "No such webhook."}}
NO_LIMIT: Responses = {404: {"description": "No such limit."}}
NO_SCHEDULE: Responses = {404: {"description": "No such schedule."}}
NO_CLASS: Responses = {404: {"description": "No such class."}}
WRONG_STATE: Responses = {409: {"description": "Not in its state."}}
NO_WORKFLOW: Responses = {404: {"description": "No such workflow, version or queue."}}
NO_GANG: Responses = {404: {"description": "No such gang."}}
NO_EVERYWHERE: Responses = {404: {"description": "No such everywhere task."}}
NO_RUN: Responses = {404: {"description": "No such run."}}
WRONG_RUN_STATE: Responses = {409: {"description": "Not in its state, or in that of the step."}}


def labels_of(pairs: list[str] | None) -> dict[str, str] | None:
    """Labels of a filter. Raises: HTTPProblem (422), for a key that is there twice."""
    labels = dict[str, str]()
    for key, _, value in (pair.partition("=") for pair in pairs or ()):
        if key in labels:
            raise HTTPProblem(
                422,
                f"label {key[:100]} is given twice",
                field="label",
                hint="there is one value of a label",
            )
        labels[key] = value
    return labels or None


def own_options(
    caller: Caller, options: BaseModel, path: str, idempotency_key: str | None = None
) -> dict[str, Any]:
    """The options of a spawn or a submission with the caller's tenant and the header's key.

    Raises: HTTPProblem (403), BadArgument.
    """
    given = options.model_dump(exclude_none=True, by_alias=True)
    tenant = caller.own_tenant(given.get("tenant"), f"{path}.tenant")
    if tenant is not None:
        given["tenant"] = tenant
    if idempotency_key is not None:
        if given.get("idempotency_key", idempotency_key) != idempotency_key:
            raise BadArgument(
                "the header Idempotency-Key and options.idempotency_key differ",
                detail={"field": "options.idempotency_key"},
                hint="give one of them",
            )
        given["idempotency_key"] = idempotency_key
    return given


def with_spans(options: dict[str, Any]) -> dict[str, Any]:
    """The options of a spawn or a gang with their spans as Python has them."""
    spans = {name: timedelta(seconds=options[name]) for name in {*SPANS, *GANG_SPANS} if name in options}
    return options | spans


def tell_place(response: Response, place: str, *, created: bool = True) -> None:
    """Say where what was made is; 200 if it was there already."""
    response.headers["Location"] = place
    if not created:
        response.status_code = 200


async def warnings_of(caller: Caller, spawned_id: UUID) -> tuple[str, ...] | None:
    """What keeps every live node from what was just spawned; None: the database cannot say it now.

    Asked once that is committed: it is spawned, whatever becomes of this.
    """
    try:
        async with asyncio.timeout(_WARNINGS_SECONDS), caller.read() as client:
            return tuple(await client.spawn_warnings(spawned_id))
    except (HwqueueError, psycopg.Error, TimeoutError):
        return None


async def stream_slot(caller: LeaseReader) -> AsyncIterator[None]:
    """A slot for one more stream of the caller, as long as it lasts."""
    with caller.services.streams.slot(caller.principal.counted_name):
        yield


async def followed(
    caller: Caller,
    request: Request,
    seen: str | None,
    fetch: Callable[[str | None], Awaitable[tuple[list[ServerSentEvent], str | None]]],
) -> AsyncIterator[ServerSentEvent]:
    """What comes after the event with the id `seen` (None: from now on), as `EventStreams.follow`.

    Args:
        fetch: As there; with the state that what is followed has ended in, or None. The last event
            is then `ended`, with the state.
    """
    services = caller.services
    ended_as: str | None = None

    async def look(after: str | None) -> tuple[list[ServerSentEvent], bool]:
        nonlocal ended_as
        found, state = await fetch(after)
        # a full look may not be the last: who is cut off after it is not told of an end
        ended_as = state if len(found) < BATCH else None
        return found, ended_as is not None

    async for found in services.streams.follow(
        seen,
        check=lambda: authenticate(services.authenticators, request),
        fetch=look,
        place_of=lambda event: event.id or "",
        beginning="0",
    ):
        yield ServerSentEvent(comment=found) if isinstance(found, str) else found
    if ended_as is not None:
        yield ServerSentEvent(event="ended", data={"state": ended_as})
