"""Removing what a run has made."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from hwqueue.client import Client


def clear(client: Client, queue: str, nodes: Iterable[UUID]) -> None:
    """Drop a queue with its leases, if it is there, and deregister nodes."""
    if any(found.queue == queue for found in client.list_queues()):
        client.drop_queue(queue, force=True)
    for node in nodes:
        client.deregister_node(node)
