"""Call the handler of a claim as the worker does, in the test's own process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any, ParamSpec, TypeVar
from uuid import UUID

from hwqueue.app import Task
from hwqueue.client import AsyncClient, Client
from hwqueue.context import AsyncLeaseContext, LeaseContext
from hwqueue.types import Claim, Json, StepResult
from hwqueue.worker import outcome
from hwqueue.worker.outcome import Outcome
from hwqueue.worker.runner import acall, call

T = TypeVar("T")
P = ParamSpec("P")
Ended = tuple[Outcome, BaseException | None]


def run_handler(task: Task[..., Any], claim: Claim, client: Client) -> Ended:
    """Run it in this thread; an async one in an event loop of its own."""
    raised: list[BaseException] = []

    def extend(by: timedelta) -> datetime:
        return client.extend_claim(claim.lease_id, claim.claim_token, extend=by)

    def read_results(run: UUID, step: str, after: int) -> list[StepResult]:
        return client.step_results(run, step, after=after, lease_id=claim.lease_id)

    def read_input(run: UUID) -> Json:
        return client.run_input(run, lease_id=claim.lease_id)

    if task.is_async:
        acontext = AsyncLeaseContext(
            claim=claim,
            extend_claim=_awaited(extend),
            read_results=_awaited(read_results),
            read_input=_awaited(read_input),
        )
        return _concluded(_in_a_loop(acall(task, acontext, raised.append)), raised)
    context = LeaseContext(
        claim=claim, extend_claim=extend, read_results=read_results, read_input=read_input
    )
    return _concluded(call(task, context, raised.append), raised)


async def arun_handler(task: Task[..., Any], claim: Claim, client: AsyncClient) -> Ended:
    """Run it in this event loop; a sync one in a thread, as the worker does."""
    raised: list[BaseException] = []
    loop = asyncio.get_running_loop()

    async def extend(by: timedelta) -> datetime:
        return await client.extend_claim(claim.lease_id, claim.claim_token, extend=by)

    async def read_results(run: UUID, step: str, after: int) -> list[StepResult]:
        return await client.step_results(run, step, after=after, lease_id=claim.lease_id)

    async def read_input(run: UUID) -> Json:
        return await client.run_input(run, lease_id=claim.lease_id)

    def waited(asked: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
        def ask(*arguments: P.args, **named: P.kwargs) -> T:
            return asyncio.run_coroutine_threadsafe(asked(*arguments, **named), loop).result()

        return ask

    if task.is_async:
        acontext = AsyncLeaseContext(
            claim=claim, extend_claim=extend, read_results=read_results, read_input=read_input
        )
        return _concluded(await acall(task, acontext, raised.append), raised)
    context = LeaseContext(
        claim=claim,
        extend_claim=waited(extend),
        read_results=waited(read_results),
        read_input=waited(read_input),
    )
    return _concluded(await asyncio.to_thread(call, task, context, raised.append), raised)


def _awaited(ask: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
    async def asked(*arguments: P.args, **named: P.kwargs) -> T:
        return ask(*arguments, **named)

    return asked


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
