"""Schedules, and which of their times fired."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from hwqueue.server.models.base import Answer, Moment, Name, Object, Request, example
from hwqueue.server.models.derived import answer_of, list_of
from hwqueue.types import FiredTime, Schedule, ScheduleFire

_SPEC = {"cron": "0 2 * * *", "zone": "Europe/Berlin", "queue": "default", "task": "report"}


class CreateSchedule(Request):
    """A schedule. The database reads the specification, and names what it refuses."""

    model_config = example(name="nightly", spec=_SPEC)

    name: Name
    spec: Object


class SetSchedule(Request):
    """Keys of a specification; null resets one."""

    model_config = example(changes={"cron": "30 2 * * *"})

    changes: Object


class PauseSchedule(Request):
    """Why it is paused, for those who look at it."""

    model_config = example(reason="month end")

    reason: Annotated[str, Field(max_length=1000)] | None = None


class TriggerSchedule(Request):
    """What it spawns now is called with these instead of its own; null: its own."""

    model_config = example(params={"day": "2026-11-01"})

    params: Any = None


class BackfillSchedule(Request):
    """The times from `since` to before `until`, which is not later than now."""

    model_config = example(since="2026-11-01T00:00:00Z", until="2026-11-08T00:00:00Z", dry_run=True)

    since: Moment
    until: Moment
    dry_run: bool = Field(default=True, description="Only say which would fire.")


class ScheduleNow(Answer):
    """A schedule after a change. changed: false if it was so before."""

    name: str
    changed: bool


class ScheduleSpec(Answer):
    """A schedule's specification after a change."""

    name: str
    spec: Object


Schedules = list_of(Schedule, name="Schedules", doc="The schedules, by name.", pages=True)
Fired = answer_of(FiredTime)
FiredTimes = list_of(FiredTime, name="FiredTimes", doc="What became of each time, the earliest first.")
ScheduleFires = list_of(ScheduleFire, pages=True)
