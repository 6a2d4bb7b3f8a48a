"""Leases: spawn, look at, change, cancel, run again."""

from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from hwqueue.client._ends import ENDED
from hwqueue.meanings import meaning
from hwqueue.server.dependencies import AuthenticatedRoute
from hwqueue.server.models import leases as models
from hwqueue.server.models.base import Id, Moment, Name, Task, Tenant
from hwqueue.server.pagination import Paged
from hwqueue.server.problems import HTTPProblem
from hwqueue.server.routers.shared import (
    NO_LEASE,
    NO_QUEUE,
    WRONG_STATE,
    IdempotencyKey,
    Labelled,
    LeaseOperator,
    LeaseReader,
    LeaseWriter,
    labels_of,
    own_options,
    tell_place,
    warnings_of,
    with_spans,
)
from hwqueue.types import LeaseState

router = APIRouter(route_class=AuthenticatedRoute, prefix="/leases", tags=["leases"])


@router.post(
    "",
    status_code=201,
    response_model=models.Spawned,
    responses={
        200: {"model": models.Spawned, "description": "The idempotency key had it already."},
        409: {"description": "The lease id is taken."},
        **NO_QUEUE,
    },
)
async def spawn_lease(
    body: models.SpawnRequest,
    caller: LeaseWriter,
    request: Request,
    response: Response,
    idempotency_key: IdempotencyKey = None,
) -> Any:
    """Spawn a lease; `warnings` of the answer say what keeps every live node from it."""
    options = await caller.run(lambda: own_options(caller, body.options, "options", idempotency_key))
    async with caller.call() as client:
        spawned = await client.spawn_lease(body.queue, body.task, body.params, **with_spans(options))
    tell_place(response, f"{request.url.path}/{spawned.lease_id}", created=spawned.created)
    if spawned.warnings is None:
        return replace(spawned, warnings=await warnings_of(caller, spawned.lease_id))
    return spawned


@router.post(
    "/batch",
    status_code=201,
    response_model=models.SpawnedBatch,
    responses={409: {"description": "A lease id is taken."}, **NO_QUEUE},
)
async def spawn_leases(body: models.SpawnBatch, caller: LeaseWriter, request: Request) -> Any:
    """Spawn a batch in one statement, all or nothing.

    Equal idempotency keys are one lease, here as over several requests. A batch has no key of its
    own: the header `Idempotency-Key` is refused.
    """
    if "idempotency-key" in request.headers:
        raise HTTPProblem(
            422,
            "a batch has no idempotency key of its own",
            field="Idempotency-Key",
            hint="give each lease one: leases[].options.idempotency_key",
        )
    leases = await caller.run(
        lambda: [
            {
                "task": spec.task,
                "params": {} if spec.params is None else spec.params,
                "options": own_options(caller, spec.options, f"leases[{index}].options"),
            }
            for index, spec in enumerate(body.leases)
        ]
    )
    async with caller.call() as client:
        return {"items": await client.spawn_leases(body.queue, leases)}


@router.get("", response_model=models.LeasePage, responses=NO_QUEUE)
async def list_leases(
    *,
    caller: LeaseReader,
    page: Paged,
    queue: Name | None = None,
    state: LeaseState | None = None,
    task: Task | None = None,
    tenant: Tenant | None = None,
    service_id: Id | None = None,
    node_id: Annotated[Id | None, Query(description=meaning("leases.node_id"))] = None,
    label: Labelled = None,
    idempotency_key: Annotated[
        models.Key | None, Query(description=meaning("leases.idempotency_key"))
    ] = None,
    created_from: Moment | None = None,
    created_before: Moment | None = None,
    finished_from: Moment | None = None,
    finished_before: Moment | None = None,
    error_type: Annotated[models.ErrorType | None, Query(description=meaning("leases.error_type"))] = None,
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    before: Annotated[Id | None, Query(description="Cursor: `next` of the page before.")] = None,
) -> Any:
    """Leases, newest first.

    A filter that few leases meet makes the database look at many; where that takes too long it is
    504, and a filter by queue or state helps.
    """
    async with caller.read() as client:
        found = await client.list_leases(
            queue=queue,
            state=state,
            task=task,
            tenant=caller.own_tenant(tenant, "tenant"),
            service_id=service_id,
            node_id=node_id,
            labels=labels_of(label),
            idempotency_key=idempotency_key,
            created_from=created_from,
            created_before=created_before,
            finished_from=finished_from,
            finished_before=finished_before,
            error_type=error_type,
            limit=limit + 1,
            before=before,
        )
    return page.of(found, limit, lambda row: row.lease_id)


@router.get("/{lease_id:uuid}", response_model=models.LeaseOut, responses=NO_LEASE)
async def get_lease(
    lease_id: Id,
    caller: LeaseReader,
    wait: Annotated[
        float, Query(ge=0, le=60, description="Seconds to wait at most, until it has ended.")
    ] = 0,
) -> Any:
    """All that is known about a lease, every attempt's error included.

    With `wait` the answer comes when the lease has completed, failed or been cancelled, at the
    latest after those seconds: look at its state. Such a request counts as an event stream.
    """
    if wait:

        async def has_ended() -> bool:
            async with caller.call() as client:
                [now] = await client.await_leases([lease_id])
            return now.state is None or now.state in ENDED

        with caller.services.streams.slot(caller.principal.counted_name):
            await caller.services.streams.wait_until(has_ended, wait)
    async with caller.call() as client:
        return await client.get_lease(lease_id)


@router.get("/{lease_id:uuid}/checkpoints", response_model=models.Checkpoints, responses=NO_LEASE)
async def lease_checkpoints(
    lease_id: Id,
    caller: LeaseReader,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 100,
) -> Any:
    """What the durable steps of a lease have saved, the last first: names, times and sizes.

    The states themselves are for the claim that goes on behind them.
    """
    async with caller.call() as client:
        return {"items": await client.lease_checkpoints(lease_id, limit=limit)}


@router.patch("/{lease_id:uuid}", responses=NO_LEASE | WRONG_STATE)
async def update_lease(lease_id: Id, body: models.LeaseChanges, caller: LeaseWriter) -> models.LeaseNow:
    """Change a lease that is not claimed, or move it to another queue."""
    changes = await caller.run(lambda: body.model_dump(exclude_unset=True))
    async with caller.call() as client:
        state = await client.update_lease(lease_id, **changes)
    return models.LeaseNow(lease_id=lease_id, state=state)


@router.post("/{lease_id:uuid}/cancel", responses=NO_LEASE | WRONG_STATE)
async def cancel_lease(
    lease_id: Id, caller: LeaseWriter, body: models.CancelRequest | None = None
) -> models.LeaseNow:
    """Cancel a lease; a running one is asked to stop, and is `claimed` until it has."""
    reason = body.reason if body else None
    async with caller.call() as client:
        state = await client.cancel_lease(lease_id, reason=reason)
    return models.LeaseNow(lease_id=lease_id, state=state)


@router.post("/{lease_id:uuid}/requeue", responses=NO_LEASE | WRONG_STATE)
async def requeue_lease(lease_id: Id, caller: LeaseOperator) -> models.LeaseNow:
    """Make a failed or cancelled lease claimable again, with all its attempts to come."""
    async with caller.call() as client:
        state = await client.requeue_lease(lease_id)
    return models.LeaseNow(lease_id=lease_id, state=state)
