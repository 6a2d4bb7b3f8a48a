"""Tasks: the options that their leases have by default."""

from typing import Annotated, Any

from fastapi import APIRouter, Path

from hwqueue.server.dependencies import AuthenticatedRoute
from hwqueue.server.models.base import Task
from hwqueue.server.models.tasks import TaskDefaults, TaskDropped, TaskNow, Tasks
from hwqueue.server.routers.shared import Operator, Reader

router = APIRouter(route_class=AuthenticatedRoute, prefix="/tasks", tags=["tasks"])

TaskName = Annotated[Task, Path(description="Name of the task.", examples=["draw"])]


@router.get("", response_model=Tasks)
async def list_tasks(caller: Reader) -> Any:
    """The tasks that have been set, and whether a live worker has a handler for them."""
    async with caller.read() as client:
        return {"items": await client.list_tasks()}


@router.put("/{task:name}")
async def set_task(task: TaskName, body: TaskDefaults, caller: Operator) -> TaskNow:
    """Set the defaults of its later spawns, all of them; options of a spawn win over them."""
    async with caller.call() as client:
        defaults = await client.set_task(task, body.model_dump(exclude_none=True))
    return TaskNow(task=task, defaults=defaults)


@router.delete("/{task:name}")
async def drop_task(task: TaskName, caller: Operator) -> TaskDropped:
    """Drop its defaults; its leases stay."""
    async with caller.call() as client:
        dropped = await client.drop_task(task)
    return TaskDropped(task=task, dropped=dropped)
