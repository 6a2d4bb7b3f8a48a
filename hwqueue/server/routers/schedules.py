"""Schedules: what is spawned at which times, and what came of it."""

from typing import Annotated, Any

from fastapi import APIRouter, Path, Query

from hwqueue.server.dependencies import AuthenticatedRoute
from hwqueue.server.models import schedules as models
from hwqueue.server.models.base import Moment, Name
from hwqueue.server.pagination import Paged
from hwqueue.server.routers.shared import NO_SCHEDULE, Admin, Operator, Reader

router = APIRouter(route_class=AuthenticatedRoute, prefix="/schedules", tags=["schedules"])

PathName = Annotated[Name, Path(description="Name of the schedule.", examples=["nightly"])]


@router.get("", response_model=models.Schedules)
async def list_schedules(
    *,
    caller: Reader,
    page: Paged,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    after: Annotated[Name | None, Query(description="Cursor: `next` of the page before.")] = None,
) -> Any:
    """The schedules by name, and how they go."""
    async with caller.read() as client:
        found = await client.list_schedules(after=after, limit=limit + 1)
    return page.of(found, limit, lambda row: row.name, name="after")


@router.post(
    "",
    status_code=201,
    responses={
        404: {"description": "No such queue or workflow."},
        409: {"description": "It is there with another one."},
    },
)
async def create_schedule(body: models.CreateSchedule, caller: Admin) -> models.ScheduleNow:
    """Make a schedule; one that is there with the same specification is left as it is."""
    async with caller.call() as client:
        created = await client.create_schedule(body.name, body.spec)
    return models.ScheduleNow(name=body.name, changed=created)


@router.patch("/{schedule:schedule}", responses=NO_SCHEDULE)
async def set_schedule(schedule: PathName, body: models.SetSchedule, caller: Admin) -> models.ScheduleSpec:
    """Change keys of its specification; when its times change, earlier ones do not fire any more."""
    async with caller.call() as client:
        spec = await client.set_schedule(schedule, body.changes)
    return models.ScheduleSpec(name=schedule, spec=spec)


@router.delete("/{schedule:schedule}")
async def drop_schedule(schedule: PathName, caller: Admin) -> models.ScheduleNow:
    """Drop it; what it spawned stays."""
    async with caller.call() as client:
        dropped = await client.drop_schedule(schedule)
    return models.ScheduleNow(name=schedule, changed=dropped)


@router.post("/{schedule:schedule}/pause", responses=NO_SCHEDULE)
async def pause_schedule(
    schedule: PathName, caller: Operator, body: models.PauseSchedule | None = None
) -> models.ScheduleNow:
    """Let nothing fire until it is resumed, but by trigger and backfill."""
    async with caller.call() as client:
        changed = await client.pause_schedule(schedule, body.reason if body else None)
    return models.ScheduleNow(name=schedule, changed=changed)


@router.post("/{schedule:schedule}/resume", responses=NO_SCHEDULE)
async def resume_schedule(schedule: PathName, caller: Operator) -> models.ScheduleNow:
    """Let it fire again, from now on."""
    async with caller.call() as client:
        changed = await client.resume_schedule(schedule)
    return models.ScheduleNow(name=schedule, changed=changed)


@router.post("/{schedule:schedule}/trigger", response_model=models.Fired, responses=NO_SCHEDULE)
async def trigger_schedule(
    schedule: PathName, caller: Operator, body: models.TriggerSchedule | None = None
) -> Any:
    """Fire it now, paused or not."""
    async with caller.call() as client:
        return await client.trigger_schedule(schedule, body.params if body else None)


@router.post("/{schedule:schedule}/backfill", response_model=models.FiredTimes, responses=NO_SCHEDULE)
async def backfill_schedule(schedule: PathName, body: models.BackfillSchedule, caller: Operator) -> Any:
    """Fire times that have passed and have spawned nothing, each once; or say which these are."""
    async with caller.call() as client:
        fired = await client.backfill_schedule(schedule, body.since, body.until, dry_run=body.dry_run)
    return {"items": fired}


@router.get("/{schedule:schedule}/fires", response_model=models.ScheduleFires, responses=NO_SCHEDULE)
async def schedule_history(
    *,
    schedule: PathName,
    caller: Reader,
    page: Paged,
    before: Annotated[Moment | None, Query(description="Cursor: `next` of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Any:
    """Which of its times fired and what came of it, newest first."""
    async with caller.read() as client:
        found = await client.schedule_history(schedule, limit=limit + 1, before=before)
    return page.of(found, limit, lambda row: row.fire_at.isoformat())
