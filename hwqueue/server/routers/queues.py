"""Queues: list, make, set, stop and let go on."""

from typing import Annotated, Any

from fastapi import APIRouter, Path

from hwqueue.errors import QueueUnknown
from hwqueue.server.dependencies import AuthenticatedRoute
from hwqueue.server.models import queues as models
from hwqueue.server.models.base import Name
from hwqueue.server.routers.shared import NO_QUEUE, Admin, Operator, Reader

router = APIRouter(route_class=AuthenticatedRoute, prefix="/queues", tags=["queues"])

QueueName = Annotated[Name, Path(description="Name of the queue.", examples=["renders"])]


@router.get("", response_model=models.Queues)
async def list_queues(caller: Reader) -> Any:
    """All queues with the number of their open leases."""
    async with caller.read() as client:
        return {"items": await client.list_queues()}


@router.post("", status_code=201, responses={409: {"description": "It exists with another policy."}})
async def create_queue(body: models.CreateQueue, caller: Admin) -> models.QueueNow:
    """Make a queue; one that exists with the same policy is left as it is."""
    policy = body.policy.model_dump(exclude_none=True)
    async with caller.call() as client:
        await client.create_queue(body.queue, policy=policy)
    return models.QueueNow(queue=body.queue)


@router.get("/{queue:queue}", response_model=models.QueueOut, responses=NO_QUEUE)
async def get_queue(queue: QueueName, caller: Reader) -> Any:
    """A queue, the number of its open leases, and its policy."""
    async with caller.read() as client:
        for found in await client.list_queues():
            if found.queue == queue:
                return found
    raise QueueUnknown(
        f"queue {queue} does not exist",
        detail={"field": "queue", "queue": queue},
        hint="list them: GET /api/v1/queues",
    )


@router.patch("/{queue:queue}/policy", responses=NO_QUEUE)
async def set_queue_policy(queue: QueueName, body: models.QueuePolicy, caller: Admin) -> models.QueueNow:
    """Change the keys of its policy that are given; leases already there keep theirs."""
    policy = body.model_dump(exclude_none=True)
    async with caller.call() as client:
        await client.set_queue_policy(queue, policy)
    return models.QueueNow(queue=queue)


@router.post("/{queue:queue}/pause", responses=NO_QUEUE)
async def pause_queue(queue: QueueName, caller: Operator) -> models.QueueNow:
    """Grant no more claims from it; spawns and running claims go on."""
    async with caller.call() as client:
        await client.pause_queue(queue)
    return models.QueueNow(queue=queue, paused=True)


@router.post("/{queue:queue}/resume", responses=NO_QUEUE)
async def resume_queue(queue: QueueName, caller: Operator) -> models.QueueNow:
    """Grant claims from it again."""
    async with caller.call() as client:
        await client.resume_queue(queue)
    return models.QueueNow(queue=queue, paused=False)


@router.post("/{queue:queue}/requeue-failed", responses=NO_QUEUE)
async def requeue_failed(
    queue: QueueName, caller: Operator, body: models.RequeueFailed | None = None
) -> models.Requeued:
    """Requeue its failed leases, oldest first."""
    chosen = (body or models.RequeueFailed()).model_dump(exclude_none=True)
    async with caller.call() as client:
        count = await client.requeue_failed(queue, **chosen)
    return models.Requeued(requeued=count)
