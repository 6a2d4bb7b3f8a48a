"""Methods that explain why a lease waits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from hwqueue import calls
from hwqueue.client._async.caller import AsyncCaller
from hwqueue.client._json import plain
from hwqueue.types import ClassExplanation, LeaseExplanation, NodeSpec, ServedClass


class AsyncExplain(AsyncCaller):
    """Why leases are pending, and what would change it; nothing is changed."""

    async def explain_lease(self, lease_id: UUID | str) -> LeaseExplanation:
        """Why a lease is where it is; of a pending one, node by node, why it does not run.

        Raises: LeaseNotFound.
        SQL: explain_lease. Safe inside your transaction: yes.
        """
        return await self._row(calls.EXPLAIN_LEASE, p_lease=lease_id)

    async def explain_class(self, class_id: int) -> ClassExplanation:
        """Why the leases of a placement class are pending.

        Raises: ClassUnknown.
        SQL: explain_class. Safe inside your transaction: yes.
        """
        return await self._row(calls.EXPLAIN_CLASS, p_class=class_id)

    async def what_if(
        self, nodes: NodeSpec | Mapping[str, Any] | Iterable[NodeSpec | Mapping[str, Any]]
    ) -> list[ServedClass]:
        """Which pending classes such nodes could run if they were there, idle; up to 1,000.

        Args:
            nodes: One or up to 100, as `register_node` takes them; in a mapping `name` and
                `instance_id` may be left out, and `count` says how many such nodes.

        Raises: BadArgument.
        SQL: what_if. Safe inside your transaction: yes.
        """
        listed = [nodes] if isinstance(nodes, NodeSpec | Mapping) else list(nodes)
        specs = [plain(node, f"nodes[{index}]") for index, node in enumerate(listed)]
        return await self._rows(calls.WHAT_IF, p_nodes=specs)
