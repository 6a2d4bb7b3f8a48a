"""Everywhere tasks: spawn them, look at them, stop them."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response

from hwqueue.server.dependencies import AuthenticatedRoute, Caller
from hwqueue.server.models import everywhere as models
from hwqueue.server.models.base import Id, Moment
from hwqueue.server.models.derived import with_more
from hwqueue.server.pagination import Paged
from hwqueue.server.problems import HTTPProblem
from hwqueue.server.roles import Scope
from hwqueue.server.routers.shared import (
    NO_EVERYWHERE,
    NO_QUEUE,
    LeaseReader,
    LeaseWriter,
    own_options,
    tell_place,
    warnings_of,
    with_spans,
)
from hwqueue.types import EverywhereState

router = APIRouter(route_class=AuthenticatedRoute, prefix="/everywhere", tags=["everywhere"])

EverywhereId = Annotated[Id, Path(description="Id of the everywhere task.")]


@router.post(
    "",
    status_code=201,
    response_model=models.SpawnedEverywhereOut,
    responses={
        200: {
            "description": "It was there already.",
            "model": models.SpawnedEverywhereOut,
        },
        409: {"description": "The id has other content, or was stopped."},
        **NO_QUEUE,
    },
)
async def spawn_everywhere(
    body: models.SpawnEverywhereRequest, caller: LeaseWriter, request: Request, response: Response
) -> Any:
    """Spawn a task on every node that suits it, also on nodes that register later.

    For operators; for tokens of a tenant where the queue's policy names it.
    """
    _check_right(caller)
    options = with_spans(own_options(caller, body.options, "options"))
    async with caller.call() as client:
        spawned = await client.spawn_everywhere(body.queue, body.task, body.params, **options)
    tell_place(response, f"{request.url.path}/{spawned.everywhere_id}", created=spawned.created)
    return with_more(spawned, warnings=await warnings_of(caller, spawned.everywhere_id))


@router.get("", response_model=models.EverywherePage)
async def list_everywhere(
    *,
    caller: LeaseReader,
    page: Paged,
    state: EverywhereState | None = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    created_before: Annotated[Moment | None, Query(description="Cursor: `next` of the page before.")] = None,
) -> Any:
    """Everywhere tasks, newest first."""
    async with caller.read() as client:
        found = await client.list_everywhere(state=state, limit=limit + 1, before=created_before)
    return page.of(found, limit, lambda row: row.created_at.isoformat(), name="created_before")


@router.get("/{everywhere_id:uuid}", response_model=models.EverywhereOut, responses=NO_EVERYWHERE)
async def get_everywhere(
    everywhere_id: EverywhereId,
    caller: LeaseReader,
    limit: Annotated[int, Query(ge=0, le=10000, description="Leases, at most.")] = 100,
    after: Annotated[
        Id | None, Query(description="Only leases of nodes after this one: the last `node_id`.")
    ] = None,
) -> Any:
    """An everywhere task and its lease on each node, by `node_id`."""
    async with caller.call() as client:
        return await client.get_everywhere(everywhere_id, limit=limit, after=after)


@router.post("/{everywhere_id:uuid}/stop", responses=NO_EVERYWHERE)
async def stop_everywhere(
    everywhere_id: EverywhereId, caller: LeaseWriter, body: models.StopEverywhereRequest | None = None
) -> models.EverywhereNow:
    """Stop an everywhere task: within about a second what waits is cancelled.

    The state is `stopping` until none of its leases is open.
    """
    running = body.running if body else "keep"
    async with caller.call() as client:
        state = await client.stop_everywhere(everywhere_id, running=running)
    return models.EverywhereNow(everywhere_id=everywhere_id, state=state)


def _check_right(caller: Caller) -> None:
    """Refuse producers. Of tokens of a tenant the database asks the queue's policy.

    Raises: HTTPProblem (403).
    """
    if caller.tenant is None and not caller.principal.has(Scope.OPERATE):
        raise HTTPProblem(
            403,
            f"role {caller.principal.role} lacks the scope {Scope.OPERATE}",
            hint="everywhere tasks take room on each node: ask an operator",
        )
