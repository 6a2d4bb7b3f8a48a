"""Claims and contexts that no database knows, to call a handler directly."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from hwqueue.context import AsyncLeaseContext, LeaseContext
from hwqueue.types import Assignment, Claim, Json

_CLAIM_TIMEOUT = timedelta(minutes=1)


def make_claim(
    task: str = "test",
    params: Json = None,
    *,
    attempt: int = 1,
    queue: str = "default",
    headers: Mapping[str, Any] | None = None,
    assignment: Assignment | None = None,
    lease_id: UUID | None = None,
    claim_token: int = 1,
) -> Claim:
    """A claim that no database knows.

    Args:
        task: Name of the task.
        params: None: an empty object.
        attempt: From 1.
        assignment: What is set aside; None: nothing is counted.
        lease_id: None: a new one.
    """
    return Claim(
        lease_id=lease_id or uuid4(),
        claim_token=claim_token,
        attempt=attempt,
        queue=queue,
        task_name=task,
        params={} if params is None else params,
        headers=headers,
        score=0.0,
        expires_at=datetime.now(UTC) + _CLAIM_TIMEOUT,
        assignment=assignment,
        shard_id=0,
    )


def make_context(params: Json = None, *, claim: Claim | None = None, **facts: Any) -> LeaseContext:
    """A context for a sync handler that a test calls itself.

    `extend` returns the new end and tells nobody. Set `cancelled` to test how the handler stops.

    Args:
        params: None: an empty object.
        claim: Its claim, with params of its own; None: one is made of `params` and `facts`.
        **facts: As `make_claim` takes them: `attempt=2`, `task`, `headers`, `assignment`, ...
    """

    def extend(by: timedelta) -> datetime:
        return datetime.now(UTC) + by

    return LeaseContext(claim=claim or make_claim(params=params, **facts), extend_claim=extend)


def make_async_context(
    params: Json = None, *, claim: Claim | None = None, **facts: Any
) -> AsyncLeaseContext:
    """The same for an async handler: see `make_context`."""

    async def extend(by: timedelta) -> datetime:
        return datetime.now(UTC) + by

    return AsyncLeaseContext(claim=claim or make_claim(params=params, **facts), extend_claim=extend)
