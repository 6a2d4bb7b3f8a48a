"""Methods about what operators look at: explanations, counts by class, figures. They change nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal
from uuid import UUID

from hwqueue import calls, types
from hwqueue.client._async.part import AsyncPart
from hwqueue.client._json import plain


class AsyncViews(AsyncPart):
    """Why work is pending and what would change it, what is full, what happened to a lease."""

    async def pending_reasons(
        self,
        *,
        queue: str | None = None,
        kind: str | None = None,
        class_id: int | None = None,
        order: str | None = None,
        limit: int | None = None,
    ) -> list[types.PendingReason]:
        """Placement classes with leases ready, and what keeps them from running.

        kind: `no_match`: no live node could ever run it; `contended`: some could, none can now.
        order: `oldest` (the default) or `pending`, most first. limit: 100 unless given.
        Raises: QueueUnknown, BadArgument.
        SQL: pending_reasons. Safe inside your transaction: yes.
        """
        return await self._rows(
            calls.PENDING_REASONS, p_queue=queue, p_kind=kind, p_class=class_id, p_order=order, p_limit=limit
        )

    async def queue_depth(self, *, queue: str | None = None) -> list[types.QueueDepth]:
        """What waits and runs in each queue, by name.

        Raises: QueueUnknown.
        SQL: queue_depth. Safe inside your transaction: yes.
        """
        return await self._rows(calls.QUEUE_DEPTH, p_queue=queue)

    async def running_leases(self, *, limit: int = 100) -> list[types.RunningLease]:
        """Leases that run, those claimed first at the top, with their progress.

        Raises: BadArgument.
        SQL: running_leases. Safe inside your transaction: yes.
        """
        return await self._rows(calls.RUNNING_LEASES, p_limit=limit)

    async def node_usage(
        self, *, state: str | None = None, limit: int | None = None, after: str | None = None
    ) -> list[types.NodeUsage]:
        """What registered nodes have and what of it is in use, by name.

        state: `live`, `silent`, `cordoned` or `draining`. limit: all unless given; after: the last
        name of the page before.
        Raises: BadArgument.
        SQL: node_usage. Safe inside your transaction: yes.
        """
        return await self._rows(calls.NODE_USAGE, p_state=state, p_limit=limit, p_after=after)

    async def tag_distribution(
        self, *, label: str | None = None, limit: int | None = None
    ) -> list[types.TagCount]:
        """How many nodes have each value of a label, or of all; the commonest first.

        limit: 100 unless given.
        Raises: BadArgument.
        SQL: tag_distribution. Safe inside your transaction: yes.
        """
        return await self._rows(calls.TAG_DISTRIBUTION, p_label=label, p_limit=limit)

    async def lease_history(self, lease_id: UUID | str) -> list[types.LeaseEvent]:
        """The life line of a lease, oldest first.

        Raises: LeaseNotFound.
        SQL: lease_history. Safe inside your transaction: yes.
        """
        return await self._rows(calls.LEASE_HISTORY, p_lease=lease_id)

    async def placement_class_stats(
        self, *, queue: str | None = None, after: int | None = None, limit: int | None = None
    ) -> list[types.ClassStats]:
        """Placement classes with what waits and runs of each, by id.

        after: the last class_id of the page before. limit: 100 unless given.
        Raises: QueueUnknown, BadArgument.
        SQL: placement_class_stats. Safe inside your transaction: yes.
        """
        return await self._rows(calls.PLACEMENT_CLASS_STATS, p_queue=queue, p_after=after, p_limit=limit)

    async def metrics(self) -> list[types.Sample]:
        """Everything that monitoring wants to know, at this moment.

        `hwqueue.metrics` makes Prometheus metrics of it.

        SQL: metrics. Safe inside your transaction: yes.
        """
        return await self._rows(calls.METRICS)

    async def fleet_history(
        self, kind: Literal["gpus", "waits"], *, minutes: int = 180
    ) -> list[types.FleetSample]:
        """How full the fleet was, by GPU model, or what waited, by reason; oldest first.

        Upkeep takes a sample a minute, and keeps it for six hours, means of hours for 35 days.

        Args:
            minutes: 1 to 50400; of more than 360 the means of hours.

        Raises: BadArgument.
        SQL: fleet_history. Safe inside your transaction: yes.
        """
        return await self._rows(calls.FLEET_HISTORY, p_kind=kind, p_minutes=minutes)

    async def throughput(self, queue: str | None = None, *, minutes: int = 60) -> list[types.Minute]:
        """What ended in each of the last minutes, oldest first; the last one is not over.

        Args:
            queue: None: all of them together.
            minutes: 1 to 1440.

        Raises: QueueUnknown, BadArgument.
        SQL: throughput. Safe inside your transaction: yes.
        """
        return await self._rows(calls.THROUGHPUT, p_queue=queue, p_minutes=minutes)

    async def explain_lease(self, lease_id: UUID | str) -> types.LeaseExplanation:
        """Why a lease is where it is; of a pending one, node by node, why it does not run.

        Raises: LeaseNotFound.
        SQL: explain_lease. Safe inside your transaction: yes.
        """
        return await self._row(calls.EXPLAIN_LEASE, p_lease=lease_id)

    async def explain_class(self, class_id: int) -> types.ClassExplanation:
        """Why the leases of a placement class are pending.

        Raises: ClassUnknown.
        SQL: explain_class. Safe inside your transaction: yes.
        """
        return await self._row(calls.EXPLAIN_CLASS, p_class=class_id)

    async def preview_preemption(self, lease_id: UUID | str) -> types.Preemption:
        """Where a pending lease would get room if leases of later tiers stopped, and which; changes nothing.

        Raises: LeaseNotFound.
        SQL: preview_preemption. Safe inside your transaction: yes.
        """
        return await self._row(calls.PREVIEW_PREEMPTION, p_lease=lease_id)

    async def what_if(
        self, nodes: types.NodeSpec | Mapping[str, Any] | Iterable[types.NodeSpec | Mapping[str, Any]]
    ) -> list[types.ServedClass]:
        """Which pending classes such nodes could run if they were there, idle; up to 1,000.

        Args:
            nodes: One or up to 100, as `register_node` takes them; in a mapping `name` and
                `instance_id` may be left out, and `count` says how many such nodes.

        Raises: BadArgument.
        SQL: what_if. Safe inside your transaction: yes.
        """
        listed = [nodes] if isinstance(nodes, types.NodeSpec | Mapping) else list(nodes)
        specs = [plain(node, f"nodes[{index}]") for index, node in enumerate(listed)]
        return await self._rows(calls.WHAT_IF, p_nodes=specs)
