"""Readings from the database."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from psycopg import AsyncConnection

from hwqueue.alike import alike, folded
from hwqueue.calls import LIMIT_TIME
from hwqueue.cli.top.reading import Reading
from hwqueue.client import AsyncClient
from hwqueue.connections import in_utf8, with_timeouts
from hwqueue.text import plural
from hwqueue.types import ClassExplanation, Event, NearNode, PendingReason

# What is read at most: a screen shows some dozens, and looking must not cost what is looked at.
MOST_CLASSES = 200
MOST_NODES = 1000
MOST_RUNNING = 200
MOST_EVENTS = 200
MINUTES = 31
NEAREST = 5

_TIMEOUT_SECONDS = 5


class DatabaseSource:
    """One connection, one query after the other; opened again after it was lost.

    Args:
        dsn: The database; it is connected to by the first reading.
        patience: How long one query may take; then the server cancels it.
    """

    def __init__(self, dsn: str, *, patience: timedelta = timedelta(seconds=5)) -> None:
        self._dsn = with_timeouts(dsn, seconds=_TIMEOUT_SECONDS, tcp_user_timeout="10000")
        self._patience = patience
        self._connection: AsyncConnection[Any] | None = None
        self._turn = asyncio.Lock()

    async def read(self) -> Reading:
        """Read everything."""
        async with self._client() as client:
            queues = await client.queue_depth()
            pending = await client.pending_reasons(order="pending", limit=MOST_CLASSES + 1)
            nodes = await client.node_usage(limit=MOST_NODES + 1)
            running = await client.running_leases(limit=MOST_RUNNING + 1)
            events = await client.list_events(limit=MOST_EVENTS)
            minutes = await client.throughput(minutes=MINUTES)
        counted = (
            ("pending", len(pending), MOST_CLASSES),
            ("nodes", len(nodes), MOST_NODES),
            ("running", len(running), MOST_RUNNING),
        )
        return Reading(
            at=datetime.now(UTC),
            queues=queues,
            pending=_worst_first(pending[:MOST_CLASSES]),
            nodes=sorted(nodes[:MOST_NODES], key=lambda node: node.state == "live"),
            running=running[:MOST_RUNNING],
            events=[_counted(event, more) for event, more in folded(events)],
            minutes=minutes,
            cut=frozenset(name for name, read, most in counted if read > most),
        )

    async def explain(self, reason: PendingReason) -> Sequence[str]:
        """Why leases of the class wait and what would help, in lines."""
        async with self._client() as client:
            found = await client.explain_class(reason.class_id)
        return list(explanation_lines(found))

    async def close(self) -> None:
        """Let the connection go."""
        if self._connection is not None:
            await self._connection.close()

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[AsyncClient]:
        """A client in a transaction that writes nothing, one at a time."""
        async with self._turn:
            connection = await self._connect()
            async with connection.transaction():
                milliseconds = str(round(self._patience.total_seconds() * 1000))
                # of the transaction: a pooler hands sessions to others
                await connection.execute(LIMIT_TIME, {"milliseconds": milliseconds})
                yield AsyncClient.on(connection)

    async def _connect(self) -> AsyncConnection[Any]:
        if self._connection is None or self._connection.closed:
            self._connection = await AsyncConnection.connect(in_utf8(self._dsn), autocommit=True)
            await self._connection.set_read_only(True)
        return self._connection


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


def _worst_first(rows: Sequence[PendingReason]) -> list[PendingReason]:
    """What reads alike merged; what no node may run first, then what has most leases."""
    merged = [each.row for each in alike(rows)]
    return sorted(merged, key=lambda row: (row.nodes_matching != 0, -row.pending))


def _counted(event: Event, more: int) -> Event:
    if not more:
        return event
    message = f"{event.message}; and {plural(more, 'class', 'classes')} more of this task"
    return replace(event, message=message)
