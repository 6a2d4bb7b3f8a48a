"""Call the handler of a claim as the worker does, in the test's own process."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any, TypeVar

from hwqueue.app import Task
from hwqueue.client import AsyncClient, Client
from hwqueue.context import AsyncLeaseContext, LeaseContext
from hwqueue.types import Claim
from hwqueue.worker import outcome
from hwqueue.worker.outcome import Outcome
from hwqueue.worker.runner import acall, call

T = TypeVar("T")
Ended = tuple[Outcome, BaseException | None]


def run_handler(task: Task[..., Any], claim: Claim, client: Client) -> Ended:
    """Run it in this thread; an async one in an event loop of its own."""
    raised: list[BaseException] = []

    def extend(by: timedelta) -> datetime:
        return client.extend_claim(claim.lease_id, claim.claim_token, extend=by)

    async def aextend(by: timedelta) -> datetime:
        return extend(by)

    if task.is_async:
        context = AsyncLeaseContext(claim=claim, extend_claim=aextend)
        ended = _in_a_loop(acall(task, context, raised.append))
    else:
        ended = call(task, LeaseContext(claim=claim, extend_claim=extend), raised.append)
    return _concluded(ended, raised)


async def arun_handler(task: Task[..., Any], claim: Claim, client: AsyncClient) -> Ended:
    """Run it in this event loop; a sync one in a thread, as the worker does."""
    raised: list[BaseException] = []
    loop = asyncio.get_running_loop()

    async def aextend(by: timedelta) -> datetime:
        return await client.extend_claim(claim.lease_id, claim.claim_token, extend=by)

    def extend(by: timedelta) -> datetime:
        return asyncio.run_coroutine_threadsafe(aextend(by), loop).result()

    if task.is_async:
        ended = await acall(
            task, AsyncLeaseContext(claim=claim, extend_claim=aextend), raised.append
        )
    else:
        context = LeaseContext(claim=claim, extend_claim=extend)
        ended = await asyncio.to_thread(call, task, context, raised.append)
    return _concluded(ended, raised)


def _concluded(ended: Outcome | None, raised: list[BaseException]) -> Ended:
    if ended is None:
        ended = outcome.failure("Cancelled", "the handler cancelled itself")
    return ended, raised[0] if raised else None


def _in_a_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run to the end; in another thread where an event loop runs in this one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()
