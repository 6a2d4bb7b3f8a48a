"""Methods about schedules."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

from hwqueue import calls, types
from hwqueue.client._async.part import AsyncPart
from hwqueue.client._json import plain
from hwqueue.cron_times import check_cron, plan, times_between
from hwqueue.errors import ScheduleInvalid, ScheduleUnknown

Spec = types.AsJson | Mapping[str, Any]


class AsyncSchedules(AsyncPart):
    """Spawn a lease, or submit a run, at given times."""

    async def create_schedule(self, name: str, spec: Spec) -> bool:
        """Create a schedule; one that is there with the same specification stays. For admins.

        Args:
            spec: `cron` and `every` of hwqueue make the first part of it. As a mapping: one of
                `cron` with `zone`, `every` with `starts_at`, and `times`; `queue`, `task`, `params`
                and `options`, or `workflow`, `input` and `options`; `missed` (`latest`, `all` or
                `skip`), `missed_window`, `overlap` (`allow` or `skip`), `jitter`.

        Returns: Whether it is new.
        Raises: ScheduleExists, ScheduleInvalid, BadArgument; as spawn_lease or submit_workflow.
        SQL: create_schedule. Safe inside your transaction: yes.
        """
        created = await self._value(calls.CREATE_SCHEDULE, p_name=name, p_spec=_checked(name, spec))
        await self._plan({name})
        return created

    async def set_schedule(self, name: str, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Change keys of a specification; None resets one. For admins.

        When its times change, what was due before is not made up for.

        Returns: The whole specification.
        Raises: ScheduleUnknown, as create_schedule.
        SQL: set_schedule. Safe inside your transaction: yes.
        """
        spec = await self._value(calls.SET_SCHEDULE, p_name=name, p_changes=_checked(name, changes))
        await self._plan({name})
        return spec

    async def sync_schedules(self, origin: str, schedules: Mapping[str, Spec]) -> list[types.SyncedSchedule]:
        """Make the schedules of an origin those that are given; others go. For admins.

        What another origin or a person has made stays, and what is paused stays so.

        Args:
            origin: Of the declarations, such as the name of an app.
            schedules: By name, as for `create_schedule`.

        Returns: What became of each.
        Raises: ScheduleExists, if another origin has the name; as create_schedule.
        SQL: sync_schedules. Safe inside your transaction: yes.
        """
        specs = {name: _checked(name, spec) for name, spec in schedules.items()}
        synced = await self._rows(calls.SYNC_SCHEDULES, p_origin=origin, p_schedules=specs)
        await self._plan(specs)
        return synced

    async def drop_schedule(self, name: str) -> bool:
        """Drop a schedule; what it spawned stays. For admins.

        Returns: Whether it was there.
        SQL: drop_schedule. Safe inside your transaction: yes.
        """
        return await self._value(calls.DROP_SCHEDULE, p_name=name)

    async def pause_schedule(self, name: str, reason: str | None = None) -> bool:
        """Let nothing fire until it is resumed, but by trigger and backfill.

        Returns: Whether it was not paused before.
        Raises: ScheduleUnknown, BadArgument.
        SQL: pause_schedule. Safe inside your transaction: yes.
        """
        return await self._value(calls.PAUSE_SCHEDULE, p_name=name, p_reason=reason)

    async def resume_schedule(self, name: str) -> bool:
        """Let a schedule fire again, from now on.

        Returns: Whether it was paused.
        Raises: ScheduleUnknown.
        SQL: resume_schedule. Safe inside your transaction: yes.
        """
        return await self._value(calls.RESUME_SCHEDULE, p_name=name)

    async def trigger_schedule(self, name: str, params: types.Json = None) -> types.FiredTime:
        """Fire a schedule now, paused or not.

        Args:
            params: Instead of its params, or its input; None: its own.

        Raises: ScheduleUnknown.
        SQL: trigger_schedule. Safe inside your transaction: yes.
        """
        return await self._row(calls.TRIGGER_SCHEDULE, p_name=name, p_params=params)

    async def backfill_schedule(
        self, name: str, since: datetime, until: datetime, *, dry_run: bool = True
    ) -> list[types.FiredTime]:
        """Fire the times from `since` to before `until` that have spawned nothing, each once.

        Args:
            until: Not later than now; there may be 1,000 times.
            dry_run: Only say what would fire.

        Raises: ScheduleUnknown, BadArgument.
        SQL: backfill_schedule. Safe inside your transaction: yes.
        """
        schedule = await self.get_schedule(name)
        times = times_between(name, schedule.spec, since, until)
        return await self._rows(calls.BACKFILL_SCHEDULE, p_name=name, p_times=times, p_dry_run=dry_run)

    async def list_schedules(self, *, after: str | None = None, limit: int = 100) -> list[types.Schedule]:
        """The schedules by name.

        Args:
            after: Only names behind this one: the last of the previous page.
            limit: Most to return.

        Raises: BadArgument.
        SQL: list_schedules. Safe inside your transaction: yes.
        """
        return await self._rows(calls.LIST_SCHEDULES, p_after=after, p_limit=limit)

    async def get_schedule(self, name: str) -> types.Schedule:
        """One schedule.

        Raises: ScheduleUnknown.
        SQL: list_schedules. Safe inside your transaction: yes.
        """
        for each in await self._rows(calls.LIST_SCHEDULES, p_name=name):
            return each
        raise ScheduleUnknown(f"no schedule is named {name[:100]!r}", hint="list them: hwqueue schedule list")

    async def schedule_history(
        self, name: str, *, limit: int = 100, before: datetime | None = None
    ) -> list[types.ScheduleFire]:
        """Which times of a schedule fired, newest first, as long as its queue keeps what has ended.

        Args:
            limit: 1 to 10,000.
            before: The last `fire_at` of the page before.

        Raises: ScheduleUnknown, BadArgument.
        SQL: schedule_history. Safe inside your transaction: yes.
        """
        return await self._rows(calls.SCHEDULE_HISTORY, p_name=name, p_limit=limit, p_before=before)

    async def due_plans(self, limit: int = 100) -> list[types.DuePlan]:
        """Schedules whose cron expressions are to be read. For workers.

        SQL: due_plans. Safe inside your transaction: yes.
        """
        return await self._rows(calls.DUE_PLANS, p_limit=limit)

    async def plan_schedule(
        self, name: str, revision: int, times: Iterable[datetime], problem: str | None = None
    ) -> bool:
        """Say which times a schedule has next. For workers.

        Args:
            revision: As `due_plans` named it.
            times: Those due after `from_at`, and the next ones, two at least.
            problem: Why it has none.

        Returns: False if it was changed since.
        Raises: ScheduleUnknown, BadArgument.
        SQL: plan_schedule. Safe inside your transaction: yes.
        """
        return await self._value(
            calls.PLAN_SCHEDULE, p_name=name, p_revision=revision, p_times=list(times), p_problem=problem
        )

    async def plan_schedules(self) -> int:
        """Plan the times of all schedules that are due for it. For workers.

        Returns: How many there were.
        SQL: due_plans, plan_schedule. Safe inside your transaction: yes.
        """
        return await self._plan(None)

    async def _plan(self, names: Collection[str] | None) -> int:
        """Plan those of these names; None: all that are due."""
        due = [each for each in await self.due_plans(1000) if names is None or each.name in names]
        for each in due:
            try:
                times, problem = plan(each), None
            except ScheduleInvalid as error:
                times, problem = [], str(error)
            with suppress(ScheduleUnknown):  # dropped since
                await self.plan_schedule(each.name, each.revision, times, problem)
        return len(due)


def _checked(name: str, spec: Spec) -> Any:
    """The specification as JSON. Raises: ScheduleInvalid, for a cron expression that is none."""
    found = plain(spec, "spec")
    if isinstance(found, Mapping) and isinstance(found.get("cron"), str):
        zone = found.get("zone")
        check_cron(found["cron"], zone if isinstance(zone, str) else "UTC", name)
    return found
