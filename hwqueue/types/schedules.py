"""Schedules: what is spawned at which times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID


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
