"""Call the handler of a claim as the worker does, in the test's own process."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from hwqueue.app import Task
from hwqueue.client import AsyncClient
from hwqueue.handler import steps
from hwqueue.handler._async.calls import async_connected
from hwqueue.handler._sync.calls import connected
from hwqueue.handler.context import AsyncLeaseContext, LeaseContext
from hwqueue.handler.gang import GangContext
from hwqueue.testing.either import at_once, is_at_once
from hwqueue.types import Checkpoint, Claim
from hwqueue.worker import outcome
from hwqueue.worker.handling import handle, handle_async
from hwqueue.worker.outcome import Outcome

T = TypeVar("T")


async def run_handler(
    task: Task[..., Any],
    claim: Claim,
    client: AsyncClient,
    *,
    gang: GangContext | None = None,
    skips_waits: bool = False,
) -> tuple[Outcome, BaseException | None]:
    """Run it as the worker does: an async one in this event loop, a sync one in a thread.

    With a `Client`: a sync one in this thread, an async one in an event loop of its own.

    Args:
        gang: What it is told of its gang.
        skips_waits: Whether waits that are limited in time are over, whatever the clock says.
    """
    raised: list[BaseException] = []
    is_sync = is_at_once(client)
    # of a client that has a pool, or connects for each call
    conninfo: str | None = getattr(client._runner, "_conninfo", None)

    async def ask(asked: str, /, **arguments: Any) -> Any:
        answer = await steps.make_call(client, claim, asked, arguments)
        if not skips_waits or asked != "checkpoints":
            return answer
        for one in filter(_is_open_sleep, answer):
            await client.save_checkpoint(claim.lease_id, claim.claim_token, one.name)
        return [_over(one) for one in answer]

    if task.is_async:
        connect = partial(async_connected, conninfo)
        running = handle_async(
            task, AsyncLeaseContext(claim=claim, gang=gang, ask=ask, connect=connect), raised.append
        )
        ended = _in_a_loop(running) if is_sync else await running
    else:
        loop = None if is_sync else asyncio.get_running_loop()

        def ask_and_wait(asked: str, /, **arguments: Any) -> Any:
            asking = ask(asked, **arguments)
            if loop is None:
                return at_once(asking)
            return asyncio.run_coroutine_threadsafe(asking, loop).result()

        context = LeaseContext(claim=claim, gang=gang, ask=ask_and_wait, connect=partial(connected, conninfo))
        run = partial(handle, task, context, raised.append)
        ended = run() if is_sync else await asyncio.to_thread(run)
    ended = ended or outcome.CANCELLED_ITSELF
    return ended, raised[0] if raised and ended.kind != "suspend" else None


def _is_open_sleep(one: Checkpoint) -> bool:
    return one.status == "open" and one.waits_for is None


def _over(one: Checkpoint) -> Checkpoint:
    """The checkpoint as if the time of its wait were over."""
    if one.status != "open" or one.waits_until is None:
        return one
    return replace(one, status="done" if one.waits_for is None else "timed_out")


def _in_a_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run to the end; in another thread where an event loop runs in this one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()
