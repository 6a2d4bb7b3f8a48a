"""Methods about what operators look at. They count by class and change nothing."""

from __future__ import annotations

from uuid import UUID

from hwqueue import calls
from hwqueue.client._async.caller import AsyncCaller
from hwqueue.types import (
    ClassStats,
    LeaseEvent,
    NodeUsage,
    PendingReason,
    QueueDepth,
    RunningLease,
    TagCount,
)


class AsyncViews(AsyncCaller):
    """Why work is pending, what is full, what happened to a lease."""

    async def pending_reasons(
        self,
        *,
        queue: str | None = None,
        kind: str | None = None,
        class_id: int | None = None,
        order: str | None = None,
        limit: int | None = None,
    ) -> list[PendingReason]:
        """Placement classes with leases ready, and what keeps them from running.

        kind: `no_match`: no live node could ever run it; `contended`: some could, none can now.
        order: `oldest` (the default) or `pending`, most first. limit: 100 unless given.
        Raises: QueueUnknown, BadArgument.
        SQL: pending_reasons. Safe inside your transaction: yes.
        """
        return await self._rows(
            calls.PENDING_REASONS,
            p_queue=queue,
            p_kind=kind,
            p_class=class_id,
            p_order=order,
            p_limit=limit,
        )

    async def queue_depth(self, *, queue: str | None = None) -> list[QueueDepth]:
        """What waits and runs in each queue, by name.

        Raises: QueueUnknown.
        SQL: queue_depth. Safe inside your transaction: yes.
        """
        return await self._rows(calls.QUEUE_DEPTH, p_queue=queue)

    async def running_leases(self, *, limit: int = 100) -> list[RunningLease]:
        """Leases that run, those claimed first at the top, with their progress.

        Raises: BadArgument.
        SQL: running_leases. Safe inside your transaction: yes.
        """
        return await self._rows(calls.RUNNING_LEASES, p_limit=limit)

    async def node_usage(
        self, *, state: str | None = None, limit: int | None = None, after: str | None = None
    ) -> list[NodeUsage]:
        """What registered nodes have and what of it is in use, by name.

        state: `live`, `silent`, `cordoned` or `draining`. limit: all unless given; after: the last
        name of the page before.
        Raises: BadArgument.
        SQL: node_usage. Safe inside your transaction: yes.
        """
        return await self._rows(calls.NODE_USAGE, p_state=state, p_limit=limit, p_after=after)

    async def tag_distribution(self, *, label: str | None = None, limit: int | None = None) -> list[TagCount]:
        """How many nodes have each value of a label, or of all; the commonest first.

        limit: 100 unless given.
        Raises: BadArgument.
        SQL: tag_distribution. Safe inside your transaction: yes.
        """
        return await self._rows(calls.TAG_DISTRIBUTION, p_label=label, p_limit=limit)

    async def lease_history(self, lease_id: UUID | str) -> list[LeaseEvent]:
        """The life line of a lease, oldest first.

        Raises: LeaseNotFound.
        SQL: lease_history. Safe inside your transaction: yes.
        """
        return await self._rows(calls.LEASE_HISTORY, p_lease=lease_id)

    async def placement_class_stats(
        self, *, queue: str | None = None, after: int | None = None, limit: int | None = None
    ) -> list[ClassStats]:
        """Placement classes with what waits and runs of each, by id.

        after: the last class_id of the page before. limit: 100 unless given.
        Raises: QueueUnknown, BadArgument.
        SQL: placement_class_stats. Safe inside your transaction: yes.
        """
        return await self._rows(calls.PLACEMENT_CLASS_STATS, p_queue=queue, p_after=after, p_limit=limit)
