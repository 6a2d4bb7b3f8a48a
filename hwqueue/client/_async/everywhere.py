"""Methods about everywhere tasks, which have one lease on each node that suits them."""

from __future__ import annotations

from datetime import datetime
from typing import Literal, Unpack
from uuid import UUID

from hwqueue import calls, types
from hwqueue.client._async.part import AsyncPart
from hwqueue.client._spawn import spawn_options


class AsyncEverywhere(AsyncPart):
    """Spawn tasks on every node, look at them and stop them."""

    async def spawn_everywhere(
        self, queue: str, task: str, params: types.Json = None, **options: Unpack[types.EverywhereOptions]
    ) -> types.SpawnedEverywhere:
        """Spawn a task on every node that suits it, also on nodes that come later.

        Elsewhere: a DaemonSet, a system or sysbatch job, a Global unit. A node has at most one open
        lease of it, and no other node gets that lease.

        Args:
            params: JSON for the handler; None: an empty object.
            **options: See `hwqueue.types.EverywhereOptions`.

        Raises: QueueUnknown, BadArgument, PlacementInvalid, PlacementContradictory, WireInvalid,
            EverywhereExists, OtherTenant.
        SQL: spawn_everywhere. Safe inside your transaction: yes, waits for nobody.
        """
        return await self._row(
            calls.SPAWN_EVERYWHERE,
            p_queue=queue,
            p_task=task,
            p_params=params,
            p_options=spawn_options(options, "options"),
        )

    async def get_everywhere(
        self, everywhere_id: UUID | str, *, limit: int = 100, after: UUID | str | None = None
    ) -> types.EverywhereTask:
        """An everywhere task and its leases, node by node.

        Args:
            limit: Most leases to return, 0 to 10,000.
            after: Only of nodes after this one: `node_id` of the last of a page.

        Raises: EverywhereNotFound, BadArgument.
        SQL: get_everywhere. Safe inside your transaction: yes.
        """
        return await self._row(calls.GET_EVERYWHERE, p_everywhere=everywhere_id, p_limit=limit, p_after=after)

    async def list_everywhere(
        self, *, state: types.EverywhereState | None = None, limit: int = 50, before: datetime | None = None
    ) -> list[types.EverywhereSummary]:
        """Everywhere tasks, newest first.

        Args:
            state: Only these; None: any.
            limit: Most to return, 1 to 1000.
            before: Only those that were spawned before: `created_at` of the last of a page.

        Raises: BadArgument.
        SQL: list_everywhere. Safe inside your transaction: yes.
        """
        return await self._rows(calls.LIST_EVERYWHERE, p_state=state, p_limit=limit, p_before=before)

    async def stop_everywhere(
        self, everywhere_id: UUID | str, *, running: Literal["keep", "stop"] = "keep"
    ) -> types.EverywhereState:
        """Stop an everywhere task: within about a second what waits is cancelled.

        Args:
            running: Leases that run go on until they end (`keep`), or are asked to `stop`.

        Returns: `stopping`, or `stopped` when none of its leases is open.
        Raises: EverywhereNotFound, BadArgument, IsolationLevel.
        SQL: stop_everywhere. Safe inside your transaction: yes.
        """
        return await self._value(calls.STOP_EVERYWHERE, p_everywhere=everywhere_id, p_running=running)
