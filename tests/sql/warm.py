"""Nodes that have claimed before: their claims take another path than a node's first.

What a node may run is decided once for its profile and queue; from then on claims start from
what was decided. A test of claims that makes its queues and nodes with `WarmApi` runs on that path.
"""

from typing import Any
from uuid import UUID

from tests.sql.api import Api, Node

ROUNDS = 4


class WarmApi(Api):
    """Api whose nodes have claimed from its queues before a test gets at them."""

    def __init__(self, conn: Any) -> None:
        super().__init__(conn)
        self._queues: list[str] = []
        self._nodes: list[Node] = []

    def queue(self, **policy: Any) -> str:
        """Make a queue; all nodes made so far claim from it."""
        name = super().queue(**policy)
        for node in self._nodes:
            warm(self, node, name)
        self._queues.append(name)
        return name

    def node(self, node_id: UUID | None = None, **spec: Any) -> Node:
        """Register a node; it claims from all queues made so far in which nothing waits."""
        node = super().node(node_id, **spec)
        for name in self._queues:
            warm(self, node, name)
        self._nodes.append(node)
        return node


def warm(api: Api, node: Node, queue: str) -> None:
    """Let a node claim some plain leases of the queue; not while anything waits there."""
    [row] = [row for row in api.rows("list_queues") if row["queue"] == queue]
    if row["pending"] or row["scheduled"] or row["claimed"]:
        return
    for _ in range(ROUNDS):
        lease = api.spawn(queue)
        claims = api.claim(node, queue)
        api.complete(*claims)
        if not claims:
            api.rows("cancel_lease", lease=lease)
