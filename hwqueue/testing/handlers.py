"""Call the handler of a claim as the worker does, in the test's own process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, ParamSpec, TypeVar
from uuid import UUID

from hwqueue.app import Task
from hwqueue.client import AsyncClient, Client
from hwqueue.handler import steps
from hwqueue.handler.context import AsyncLeaseContext, LeaseContext
from hwqueue.handler.gang import GangContext
from hwqueue.types import Checkpoint, Claim, Json, StepResult
from hwqueue.worker import outcome
from hwqueue.worker.outcome import Outcome
from hwqueue.worker.runner import acall, call

T = TypeVar("T")
P = ParamSpec("P")
Ended = tuple[Outcome, BaseException | None]


def run_handler(
    task: Task[..., Any],
    claim: Claim,
    client: Client,
    *,
    gang: GangContext | None = None,
    skips_waits: bool = False,
) -> Ended:
    """Run it in this thread; an async one in an event loop of its own.

    Args:
        gang: What it is told of its gang.
        skips_waits: Whether waits that are limited in time are over, whatever the clock says.
    """
    raised: list[BaseException] = []

    def extend(by: timedelta) -> datetime:
        return client.extend_claim(claim.lease_id, claim.claim_token, extend=by)

    def read_results(run: UUID, step: str, after: int) -> list[StepResult]:
        return client.step_results(run, step, after=after, lease_id=claim.lease_id)

    def read_input(run: UUID) -> Json:
        return client.run_input(run, lease_id=claim.lease_id)

    def ask(call: str, /, **arguments: Any) -> Any:
        answer = getattr(client, call)(claim.lease_id, claim.claim_token, **arguments)
        if not skips_waits or call != "checkpoints":
            return answer
        for one in filter(_is_open_sleep, answer):
            client.save_checkpoint(claim.lease_id, claim.claim_token, one.name)
        return [_over(one) for one in answer]

    if task.is_async:
        acontext = AsyncLeaseContext(
            claim=claim,
            gang=gang,
            extend_claim=_awaited(extend),
            read_results=_awaited(read_results),
            read_input=_awaited(read_input),
            ask=_awaited(ask),
            connect=_aconnect(client),
        )
        return _concluded(_in_a_loop(acall(task, acontext, raised.append)), raised)
    context = LeaseContext(
        claim=claim,
        gang=gang,
        extend_claim=extend,
        read_results=read_results,
        read_input=read_input,
        ask=ask,
        connect=_connect(client),
    )
    return _concluded(call(task, context, raised.append), raised)


async def arun_handler(
    task: Task[..., Any],
    claim: Claim,
    client: AsyncClient,
    *,
    gang: GangContext | None = None,
    skips_waits: bool = False,
) -> Ended:
    """Run it in this event loop; a sync one in a thread, as the worker does."""
    raised: list[BaseException] = []
    loop = asyncio.get_running_loop()

    async def extend(by: timedelta) -> datetime:
        return await client.extend_claim(claim.lease_id, claim.claim_token, extend=by)

    async def read_results(run: UUID, step: str, after: int) -> list[StepResult]:
        return await client.step_results(run, step, after=after, lease_id=claim.lease_id)

    async def read_input(run: UUID) -> Json:
        return await client.run_input(run, lease_id=claim.lease_id)

    async def ask(call: str, /, **arguments: Any) -> Any:
        answer = await getattr(client, call)(claim.lease_id, claim.claim_token, **arguments)
        if not skips_waits or call != "checkpoints":
            return answer
        for one in filter(_is_open_sleep, answer):
            await client.save_checkpoint(claim.lease_id, claim.claim_token, one.name)
        return [_over(one) for one in answer]

    def waited(asked: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
        def answer(*arguments: P.args, **named: P.kwargs) -> T:
            return asyncio.run_coroutine_threadsafe(asked(*arguments, **named), loop).result()

        return answer

    if task.is_async:
        acontext = AsyncLeaseContext(
            claim=claim,
            gang=gang,
            extend_claim=extend,
            read_results=read_results,
            read_input=read_input,
            ask=ask,
            connect=_aconnect(client),
        )
        return _concluded(await acall(task, acontext, raised.append), raised)
    context = LeaseContext(
        claim=claim,
        gang=gang,
        extend_claim=waited(extend),
        read_results=waited(read_results),
        read_input=waited(read_input),
        ask=waited(ask),
        connect=_connect(client),
    )
    return _concluded(await asyncio.to_thread(call, task, context, raised.append), raised)


def _awaited(ask: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
    async def asked(*arguments: P.args, **named: P.kwargs) -> T:
        return ask(*arguments, **named)

    return asked


def _is_open_sleep(one: Checkpoint) -> bool:
    return one.status == "open" and one.waits_for is None


def _over(one: Checkpoint) -> Checkpoint:
    """The checkpoint as if the time of its wait were over."""
    if one.status != "open" or one.waits_until is None:
        return one
    return replace(one, status="done" if one.waits_for is None else "timed_out")


def _connect(client: Client | AsyncClient) -> steps.Connect:
    conninfo = _conninfo(client)
    return steps.connect_nowhere if conninfo is None else partial(steps.connected, conninfo)


def _aconnect(client: Client | AsyncClient) -> steps.AsyncConnect:
    conninfo = _conninfo(client)
    return steps.connect_nowhere if conninfo is None else partial(steps.async_connected, conninfo)


def _conninfo(client: Client | AsyncClient) -> str | None:
    """Of a client that has a pool, or connects for each call."""
    conninfo: str | None = getattr(client._runner, "_conninfo", None)
    return conninfo


def _concluded(ended: Outcome | None, raised: list[BaseException]) -> Ended:
    if ended is None:
        ended = outcome.failure("Cancelled", "the handler cancelled itself")
    failed = raised and ended.kind != "suspend"
    return ended, raised[0] if failed else None


def _in_a_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run to the end; in another thread where an event loop runs in this one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(coroutine)
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, coroutine).result()
