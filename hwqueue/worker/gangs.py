"""The barrier of a gang: no handler begins before all members are claimed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from hwqueue.errors import GangNotFound
from hwqueue.handler.gang import GangContext
from hwqueue.types import Claim, GangStatus

_JITTER = 0.1


async def gather(
    claim: Claim, ask: Callable[[Claim, str, Mapping[str, Any]], Awaitable[Any]]
) -> GangContext | None:
    """Wait until all members of the claim's gang are there. None: the lease is of no gang.

    Args:
        ask: Makes a call about a claim.

    Raises:
        LeaseError: The claim is not this worker's any more.

    SQL: gang_status.
    """
    while True:
        try:
            status: GangStatus = await ask(claim, "gang_status", {})
        except GangNotFound:
            return None
        if status.retry_after is None:
            return GangContext.of(claim, status)
        await asyncio.sleep(status.retry_after.total_seconds() * random.uniform(1 - _JITTER, 1))
