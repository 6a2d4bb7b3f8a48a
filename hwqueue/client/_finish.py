"""Wait for a statement to the end, even when the waiting task is cancelled."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def afinish(statement: Awaitable[T]) -> T:
    """The statement's result. Cancelling the caller raises only once the statement has ended.

    psycopg would cancel it in the server; a claim that commits at that moment would be granted with
    nobody to hear of it.
    """
    running = asyncio.ensure_future(statement)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        if not running.cancelled():
            running.exception()  # looked at, or asyncio complains about it later
        raise


def finish(result: T) -> T:
    """The twin of `afinish` in the sync client, where a call that returns has ended."""
    return result
