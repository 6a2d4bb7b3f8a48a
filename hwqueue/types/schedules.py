"""Schedules: what is spawned at which times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from hwqueue.types.base import given, members


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """When a schedule fires; `hwqueue.cron` and `hwqueue.every` make it. None: the default.

    Attributes:
        cron, zone: An expression of five fields, and the time zone that it is in; None: UTC.
        every, starts_at: A span, and from when it is counted; None: from 1970 on.
        missed: Of times that no worker was there for: `latest` fires, `all` do, or none (`skip`).
        missed_window: What is older never fires.
        overlap: `skip`: nothing is spawned while what was spawned before is open; or `allow`.
        jitter: A lease may wait up to that long.
        params: What the handler is called with; of a workflow the input.
    """

    cron: str | None = None
    zone: str | None = None
    every: timedelta | None = None
    starts_at: datetime | None = None
    missed: str | None = None
    missed_window: timedelta | None = None
    overlap: str | None = None
    jitter: timedelta | None = None
    params: Mapping[str, Any] | None = None

    def as_json(self) -> dict[str, Any]:
        """The first part of a specification, as `create_schedule` takes it."""
        starts_at = None if self.starts_at is None else self.starts_at.isoformat()
        return members(self) | given(starts_at=starts_at)

    def of_workflow(self, name: str) -> dict[str, Any]:
        """The whole specification of a schedule that submits runs."""
        spec = self.as_json() | {"workflow": name}
        return spec | {"input": spec.pop("params")} if "params" in spec else spec


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A schedule, and how it goes.

    Attributes:
        kind: `cron`, `every` or `times`.
        spec: When it fires and what it spawns, in normal form; spans in seconds.
        tenant: Of what it spawns; "": none.
        origin: The app that declares it (`sync_schedules`); None: it was made by hand.
        revision: Rises at each change.
        next_at: None: it is paused, over, or not planned yet.
        last_at, last_outcome, last_error: Of the last time that fired.
        missed: Times that did not fire, because upkeep came too late.
        plan_error: Why its times cannot be planned.
        is_dry: Nobody has planned its next time: no worker runs upkeep.
    """

    name: str
    kind: str
    spec: Mapping[str, Any]
    tenant: str
    origin: str | None
    revision: int
    next_at: datetime | None
    last_at: datetime | None
    last_outcome: str | None
    last_error: str | None
    missed: int
    plan_error: str | None
    is_dry: bool
    paused_at: datetime | None
    paused_by: str | None
    paused_reason: str | None
    created_at: datetime
    created_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleFire:
    """A time of a schedule that fired.

    Attributes:
        fire_at: The time of the schedule; of a trigger that of the call.
        fired_at: When that was done.
        cause: `due`, `trigger` or `backfill`.
        outcome: `spawned`; `skipped_overlap`: the lease or run is the one that was open; `failed`.
        error: Why nothing was spawned.
    """

    fire_at: datetime
    fired_at: datetime
    cause: str
    outcome: str
    lease_id: UUID | None
    run_id: UUID | None
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FiredTime:
    """What became of a time that a trigger or a backfill has fired.

    outcome: as of `ScheduleFire`; of a backfill also `fired_before`, and `would_spawn` of a dry run.
    """

    fire_at: datetime
    outcome: str
    lease_id: UUID | None
    run_id: UUID | None
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncedSchedule:
    """A schedule of an origin. change: `created`, `changed`, `same` or `dropped`."""

    name: str
    change: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DuePlan:
    """A schedule whose times are to be planned: those of `cron` in `zone` after `from_at`.

    revision: to be handed to `plan_schedule`. now: the database's time.
    """

    name: str
    revision: int
    cron: str
    zone: str
    from_at: datetime
    now: datetime
