"""Methods about leases: spawn, look at, change, cancel."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Unpack
from uuid import UUID

from hwqueue import calls, tracing, types
from hwqueue.client import _spawn
from hwqueue.client._async.runner import AsyncPoolRunner
from hwqueue.client._async.waiting import AsyncSpawned, AsyncWaiting
from hwqueue.client._json import given, plain
from hwqueue.errors import BadArgument, HwqueueError


class AsyncLeases(AsyncWaiting):
    """Spawn leases and follow them."""

    async def spawn_lease(
        self, queue: str, task: str, params: types.Json = None, **options: Unpack[types.SpawnOptions]
    ) -> AsyncSpawned:
        """Spawn one lease; wait for it with `result` or `wait` of what this returns.

        Args:
            params: JSON for the handler; None: an empty object. Dataclasses, pydantic models,
                datetimes and the like are not converted for you.
            **options: See `hwqueue.types.SpawnOptions`.

        What keeps every live node from it is in `warnings` of what this returns, as far as the
        database knows it by then, and in the log: a warning once for each task and sentence.

        Raises: QueueUnknown, BadArgument, PlacementInvalid, PlacementContradictory,
            WireInvalid, IdempotencyMismatch, UniqueConflict, LeaseExists.
        SQL: spawn_lease. Safe inside your transaction: yes, waits for nobody.
        """
        with tracing.spawning(queue, task) as headers:
            spawned = await self._row(
                calls.SPAWN_LEASE,
                p_queue=queue,
                p_task=task,
                p_params=params,
                p_options=_spawn.spawn_options(_spawn.with_headers(options, headers), "options"),
            )
        _spawn.tell_warnings(task, spawned.warnings)
        return AsyncSpawned.of(spawned, self)

    async def spawn_leases(
        self, queue: str, leases: Iterable[types.LeaseSpec | Mapping[str, Any]]
    ) -> list[AsyncSpawned]:
        """Spawn a batch in one transaction, all or nothing; the results are in the order given.

        Many go in several calls, each sent while the server works on the one before; on your own
        connection, and with keys or ids that they may share, in one.

        Args:
            leases: `LeaseSpec`s or mappings of `task`, `params`, `options`.

        Raises: As `spawn_lease`; `detail["index"]` is the position (from 0) of the refused one.
        SQL: spawn_leases. Safe inside your transaction: yes, waits for nobody.
        """
        with tracing.spawning(queue, None) as headers:
            items = await self._do(
                lambda: [
                    _spawn.spawn_item(each, f"leases[{index}]", headers) for index, each in enumerate(leases)
                ]
            )
            spawned = await self._spawn_items(queue, items)
        return await self._do(lambda: [AsyncSpawned.of(one, self) for one in spawned])

    async def _spawn_items(self, queue: str, items: Sequence[Any]) -> list[types.SpawnResult]:
        batches = _spawn.spawn_batches(items)
        refused = None
        if len(batches) > 1 and isinstance(self._runner, AsyncPoolRunner):
            given = ({"p_queue": queue, "p_leases": _spawn.spawn_batch(batch)} for batch in batches)
            try:
                return await self._rows_of_all(calls.SPAWN_LEASES, given)
            except HwqueueError as error:  # all is undone; one call says which one of all is at fault
                refused = error
        try:
            batch = await self._do(lambda: _spawn.spawn_batch(items))
            return await self._rows(calls.SPAWN_LEASES, p_queue=queue, p_leases=batch)
        except BadArgument as error:
            if error.__cause__ is not None:  # the server's
                raise
            if refused is not None and refused.__cause__ is not None:  # they are too large only together
                raise refused from None
        return await self._rows(calls.SPAWN_LEASES, p_queue=queue, p_leases=items)  # refused by its own name

    async def spawn_warnings(self, spawned_id: UUID | str) -> list[str]:
        """What keeps every live node from what was just spawned, a sentence each.

        No live worker has its task, no live node has a label or resource that it asks (and what was
        probably meant), its task's defaults were never synced. Nothing of it is refused: a node
        that fits may come. It looks at all nodes: for what people spawn, not for each of many.

        Args:
            spawned_id: Of a lease, a gang or an everywhere task.

        SQL: spawn_warnings. Safe inside your transaction: yes.
        """
        return list(await self._value(calls.SPAWN_WARNINGS, p_id=spawned_id))

    async def get_lease(self, lease_id: UUID | str) -> types.Lease:
        """All that is known about a lease, every attempt's error included.

        Raises: LeaseNotFound.
        SQL: get_lease. Safe inside your transaction: yes.
        """
        return await self._row(calls.GET_LEASE, p_lease=lease_id)

    async def lease_logs(
        self,
        lease_id: UUID | str,
        *,
        after: str | None = None,
        attempt: int | None = None,
        last: bool = False,
        limit: int = 1000,
    ) -> list[types.LogLine]:
        """What the handlers of a lease logged, oldest first; the last 1000 lines of each claim.

        To follow, go on with the `cursor` of the last line seen as `after`.

        Args:
            after: A line's cursor; None: from the beginning.
            attempt: Only of this attempt; None: of all.
            last: The last `limit` lines instead of the first.
            limit: 1 to 1000.

        Raises: LeaseNotFound, BadArgument.
        SQL: lease_logs. Safe inside your transaction: yes.
        """
        return await self._rows(
            calls.LEASE_LOGS, p_lease=lease_id, p_after=after, p_limit=limit, p_attempt=attempt, p_last=last
        )

    async def list_leases(
        self,
        *,
        queue: str | None = None,
        limit: int = 50,
        before: UUID | str | None = None,
        **wanted: Unpack[types.LeaseFilter],
    ) -> list[types.LeaseSummary]:
        """Leases, newest first.

        Args:
            queue: None: any.
            limit: Most to return.
            before: Only leases older than this one: the last of the previous page.
            **wanted: Only these, see `hwqueue.types.LeaseFilter`.

        Raises: QueueUnknown, BadArgument.
        SQL: list_leases. Safe inside your transaction: yes.
        """
        return await self._rows(
            calls.LIST_LEASES, p_filter=_spawn.lease_filter(queue, wanted), p_limit=limit, p_before=before
        )

    async def find_lease(
        self, queue: str, idempotency_key: str, *, tenant: str | None = None
    ) -> types.LeaseSummary | None:
        """The lease that was spawned with an idempotency key; None: there is none, or it is gone.

        Args:
            tenant: Whose it is; "": nobody's; None: any, the newest if several have the key.

        Raises: QueueUnknown, BadArgument.
        SQL: list_leases. Safe inside your transaction: yes.
        """
        found = await self.list_leases(queue=queue, idempotency_key=idempotency_key, tenant=tenant, limit=1)
        return found[0] if found else None

    async def update_lease(
        self, lease_id: UUID | str, **changes: Unpack[types.LeaseChanges]
    ) -> types.LeaseState:
        """Change a lease that is not claimed; what is not given stays as it is.

        Args:
            **changes: See `hwqueue.types.LeaseChanges`.

        Returns: Its state after the change.
        Raises: LeaseNotFound, LeaseClaimed, LeaseFinished, BadArgument, PlacementInvalid,
            PlacementContradictory, WireInvalid; with a queue QueueUnknown, and UniqueConflict when
            another lease has its key there.
        SQL: update_lease. Safe inside your transaction: yes, but the lease is not claimable
            until it ends.
        """
        return await self._value(calls.UPDATE_LEASE, p_lease=lease_id, p_changes=plain(changes, "changes"))

    async def cancel_lease(self, lease_id: UUID | str, *, reason: str | None = None) -> types.LeaseState:
        """Cancel a lease; a running claim is asked to stop.

        Returns: `cancelled`, or `claimed` while the running claim has been asked to stop.
        Raises: LeaseNotFound, LeaseFinished.
        SQL: cancel_lease. Safe inside your transaction: yes, but the lease is not claimable
            until it ends.
        """
        return await self._value(calls.CANCEL_LEASE, p_lease=lease_id, p_reason=reason)

    async def requeue_lease(self, lease_id: UUID | str) -> types.LeaseState:
        """Make a failed or cancelled lease claimable again, with all its attempts to come.

        Returns: Its new state.
        Raises: LeaseNotFound, LeaseClaimed, LeaseFinished (it has completed).
        SQL: requeue_lease. Safe inside your transaction: yes.
        """
        return await self._value(calls.REQUEUE_LEASE, p_lease=lease_id)

    async def requeue_failed(
        self,
        queue: str,
        *,
        task: str | None = None,
        since: datetime | timedelta | None = None,
        until: datetime | timedelta | None = None,
        limit: int | None = None,
    ) -> int:
        """Requeue the failed leases of a queue.

        Args:
            task: Only of this task.
            since, until: Only those that failed in this time, see `list_events`.
            limit: Most to requeue; None: the function's own limit.

        Returns: How many were requeued.
        Raises: QueueUnknown, BadArgument.
        SQL: requeue_failed. Safe inside your transaction: yes.
        """
        chosen = given({"task": task, "since": since, "until": until, "limit": limit})
        return await self._value(calls.REQUEUE_FAILED, p_queue=queue, p_filter=plain(chosen, "filter"))
