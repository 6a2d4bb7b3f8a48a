"""What a handler is told about the lease it runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Self
from uuid import UUID

from hwqueue.types import Assignment, Claim, Json


class Cancelled(BaseException):
    """Raised inside a sync handler that is asked to stop (async ones get `CancelledError`).

    A `BaseException`, so that `except Exception` in a handler does not swallow it.
    """


@dataclass(frozen=True, kw_only=True, eq=False)
class _LeaseFacts:
    """What both kinds of context tell.

    Attributes:
        claim: The claim that this run is; the properties below are its parts.
    """

    claim: Claim

    @property
    def task_name(self) -> str:
        """The task."""
        return self.claim.task_name

    @property
    def queue(self) -> str:
        """The queue."""
        return self.claim.queue

    @property
    def params(self) -> Json:
        """The params of the lease, as JSON."""
        return self.claim.params

    def with_params(self, params: Json) -> Self:
        """A context that differs in its params: for `call_next` of a middleware."""
        return replace(self, claim=replace(self.claim, params=params))

    @property
    def lease_id(self) -> UUID:
        """The lease."""
        return self.claim.lease_id

    @property
    def claim_token(self) -> int:
        """Fence token of this run: it rises with every grant of the lease.

        Hand it to whatever the handler writes to, so that a stale run can be refused there.
        """
        return self.claim.claim_token

    @property
    def attempt(self) -> int:
        """Number of this attempt, from 1."""
        return self.claim.attempt

    @property
    def headers(self) -> dict[str, Any]:
        """The producer's headers."""
        return dict(self.claim.headers or {})

    @property
    def assignment(self) -> Assignment | None:
        """What was set aside (CPU, memory, GPUs); None when nothing is counted."""
        return self.claim.assignment


@dataclass(frozen=True, kw_only=True, eq=False)
class LeaseContext(_LeaseFacts):
    """For sync handlers, in a thread or a process.

    Attributes:
        cancelled: Set when the handler should stop. Returning normally after that still
            completes the lease; to hand it back, call `raise_if_cancelled`.
    """

    cancelled: threading.Event = field(default_factory=threading.Event)
    extend_claim: Callable[[timedelta], datetime]

    def raise_if_cancelled(self) -> None:
        """Raise `hwqueue.Cancelled` when the handler should stop; call it now and then."""
        if self.cancelled.is_set():
            raise Cancelled

    def extend(self, by: timedelta) -> datetime:
        """Move the claim's end to `by` from now, for work that outlives a lost connection.

        The worker heartbeats every claim; this is only for a longer lease of life than that.
        Not available in a process.

        Returns:
            When the claim ends unless it is extended again.

        Raises:
            LeaseLost, LeaseCancelled: The claim is no longer this run's.

        SQL: extend_claim.
        """
        return self.extend_claim(by)


@dataclass(frozen=True, kw_only=True, eq=False)
class AsyncLeaseContext(_LeaseFacts):
    """For async handlers.

    Attributes:
        cancelled: Set just before `CancelledError` is raised in the handler.
    """

    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    extend_claim: Callable[[timedelta], Awaitable[datetime]]

    async def extend(self, by: timedelta) -> datetime:
        """See `LeaseContext.extend`."""
        return await self.extend_claim(by)
