"""Methods about tasks and the options that their leases have by default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hwqueue import calls, types
from hwqueue.client._async.part import AsyncPart
from hwqueue.client._json import given, plain


class AsyncTasks(AsyncPart):
    """Say which options the leases of a task have by default."""

    async def set_task(
        self, task: str, defaults: types.AsJson | Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Set the defaults of a task, all of them, for every later spawn.

        An option of a spawn replaces the default of its name as a whole.

        Args:
            defaults: The `defaults` of an `hwqueue.Task`, or a mapping with any of `placement`,
                `affinity_tags`, `labels`, `patience`, `priority`, `max_attempts`, `retry`,
                `claim_timeout` and `max_run`, as `SpawnOptions` has them. What is None is no
                default.

        Returns: The defaults as JSON, spans in seconds.
        Raises: BadArgument, PlacementInvalid, PlacementContradictory.
        SQL: set_task. Safe inside your transaction: yes.
        """
        options = plain(defaults, "defaults")
        options = given(options) if isinstance(options, Mapping) else options
        return await self._value(calls.SET_TASK, p_task=task, p_defaults={} if options is None else options)

    async def list_tasks(self) -> list[types.KnownTask]:
        """The tasks that have been set, or for which live workers declare defaults, by name.

        SQL: list_tasks. Safe inside your transaction: yes.
        """
        return await self._rows(calls.LIST_TASKS)

    async def compare_tasks(
        self, tasks: Mapping[str, types.AsJson | Mapping[str, Any]]
    ) -> list[types.TaskDifference]:
        """Which options differ from the defaults that were set, for a worker's log.

        An option that is not declared does not differ.

        Args:
            tasks: What an app declares: by name the defaults as for `set_task`, at most 1,000.

        Returns: By task and option.
        Raises: BadArgument, PlacementInvalid, PlacementContradictory.
        SQL: compare_tasks. Safe inside your transaction: yes.
        """
        declared = {name: plain(each, name) for name, each in tasks.items()}
        return await self._rows(calls.COMPARE_TASKS, p_defaults=declared)

    async def sync_tasks(
        self,
        tasks: Mapping[str, types.AsJson | Mapping[str, Any]],
        *,
        version: str | None = None,
        force: bool = False,
    ) -> list[types.SyncedTask]:
        """Set the defaults that an app declares, where they are newer than the database's.

        They are not set where `set_task` has set others, where an app of a higher version has, or,
        without two versions to compare, where the task has had them before.

        Args:
            tasks: By name the defaults as for `set_task`, at most 1,000.
            version: Of the app, such as "1.4.2"; what is no version counts as None.
            force: Set them all the same.

        Returns: The tasks that had others.
        Raises: BadArgument, PlacementInvalid, PlacementContradictory.
        SQL: sync_tasks. Safe inside your transaction: yes.
        """
        declared = {name: plain(each, name) for name, each in tasks.items()}
        return await self._rows(
            calls.SYNC_TASKS, p_defaults=declared, p_version=version, p_forces=force or None
        )

    async def drop_task(self, task: str) -> bool:
        """Drop the defaults of a task; its leases stay, and it can be spawned as before.

        Returns: Whether it was set.
        SQL: drop_task. Safe inside your transaction: yes.
        """
        return await self._value(calls.DROP_TASK, p_task=task)
