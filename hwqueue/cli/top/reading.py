"""What is looked at: everything that one frame shows, read in one go."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from hwqueue.types import Event, Minute, NodeUsage, PendingReason, QueueDepth, RunningLease


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The figures of one moment.

    Attributes:
        at: When they were read, by this machine's clock.
        pending: Classes with leases that could be claimed by now, the oldest first.
        nodes: Those that are not live first, then by name.
        running: Those claimed first, with their progress.
        events: The newest first.
        minutes: Of all queues together, the oldest first; the last is not over.
        cut: Which of the fields have more rows than were read.
    """

    at: datetime
    queues: Sequence[QueueDepth]
    pending: Sequence[PendingReason]
    nodes: Sequence[NodeUsage]
    running: Sequence[RunningLease]
    events: Sequence[Event]
    minutes: Sequence[Minute]
    cut: frozenset[str] = frozenset()


class Source(Protocol):
    """Where readings come from.

    Both raise HwqueueError and psycopg.Error when the database does not answer.
    """

    async def read(self) -> Reading:
        """Read everything."""
        ...

    async def explain(self, reason: PendingReason) -> Sequence[str]:
        """Why leases of the class wait and what would help, in lines."""
        ...

    async def close(self) -> None:
        """Let the connections go."""
        ...
