"""Readings from the database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

from hwqueue.cli.top.reading import Reading
from hwqueue.client import AsyncClient
from hwqueue.types import ClassExplanation, NearNode, PendingReason

# What is read at most: a screen shows some dozens, and looking must not cost what is looked at.
MOST_CLASSES = 200
MOST_NODES = 1000
MOST_EVENTS = 200
MINUTES = 31
NEAREST = 5


class DatabaseSource:
    """One connection, one query after the other.

    Args:
        dsn: The database; it is connected to by the first reading.
        patience: How long a reading may take; then it is given up, on the server, too.
    """

    def __init__(
        self, dsn: str, *, shard: int = 0, patience: timedelta = timedelta(seconds=10)
    ) -> None:
        self._client = AsyncClient(dsn, pool_size=1, pool_timeout=patience)
        self._is_open = False
        self._shard = shard
        self._patience = patience

    async def read(self) -> Reading:
        """Read everything."""
        async with self._bounded():
            queues = await self._client.queue_depth(shard=self._shard)
            pending = await self._client.pending_reasons(limit=MOST_CLASSES + 1, shard=self._shard)
            nodes = await self._client.node_usage(limit=MOST_NODES + 1, shard=self._shard)
            events = await self._client.list_events(limit=MOST_EVENTS, shard=self._shard)
            minutes = await self._client.throughput(minutes=MINUTES, shard=self._shard)
        return Reading(
            at=datetime.now(UTC),
            queues=queues,
            pending=pending[:MOST_CLASSES],
            nodes=nodes[:MOST_NODES],
            events=events,
            minutes=minutes,
            cut=frozenset(
                name
                for name, rows, most in (
                    ("pending", pending, MOST_CLASSES),
                    ("nodes", nodes, MOST_NODES),
                )
                if len(rows) > most
            ),
        )

    async def explain(self, reason: PendingReason) -> Sequence[str]:
        """Why leases of the class wait and what would help, in lines."""
        async with self._bounded():
            found = await self._client.explain_class(reason.class_id, shard=self._shard)
        return list(explanation_lines(found))

    async def close(self) -> None:
        """Let the connection go."""
        await self._client.close()

    @asynccontextmanager
    async def _bounded(self) -> AsyncIterator[None]:
        """Connected, and for a limited time."""
        async with asyncio.timeout(self._patience.total_seconds()):
            if not self._is_open:
                await self._client.open()
                self._is_open = True
            yield


def explanation_lines(found: ClassExplanation) -> Iterator[str]:
    """An explanation in few lines."""
    yield f"{found.headline} ({found.code})"
    if found.help:
        yield from ("", "What would help", *(f"  {one.words}" for one in found.help))
    if found.sole_blockers:
        yield from ("", "Kept out by one thing alone")
        for blocker in found.sole_blockers:
            yield f"  {blocker.nodes} nodes: {blocker.words} ({', '.join(blocker.samples)})"
    if found.nearest:
        yield from ("", "Nearest nodes", *map(_near, found.nearest[:NEAREST]))


def _near(node: NearNode) -> str:
    reasons = "; ".join(reason.message for reason in node.reasons)
    return f"  {node.node} ({node.state}): {reasons or 'could take it now'}"
