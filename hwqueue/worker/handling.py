"""Running the handler of a claim with its records, its span and its CPUs, to how it ended."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any

from hwqueue import tracing
from hwqueue.app import Cancelled, Task
from hwqueue.logs import about
from hwqueue.types import Claim
from hwqueue.worker import outcome
from hwqueue.worker.outcome import Outcome

OnError = Callable[[BaseException], object]


def handle(task: Task[..., Any], context: Any, on_error: OnError | None = None) -> Outcome | None:
    """Run a sync handler in this thread, on the CPUs of its lease; None when it gave way.

    No exception may leave the thread: a future does not take every kind, and would never be done.

    Args:
        context: For a task that takes none, what has its `claim` and `tell_line` will do.
        on_error: Told what the handler raised.
    """
    claim = context.claim
    with about(claim, context.tell_line), tracing.handling(claim) as note:
        how: Outcome | None = None
        try:
            with pinned(claim):
                how = outcome.of_result(task.run(context))
        except (Cancelled, asyncio.CancelledError):
            pass
        except BaseException as error:
            if on_error is not None:
                on_error(error)
            how = outcome.of_exception(error, may_retry=task.may_retry(error))
        traceparent = note(how)
    return how if traceparent is None else outcome.traced(how, traceparent)


async def handle_async(
    task: Task[..., Any], context: Any, on_error: OnError | None = None, *, is_traced: bool = True
) -> Outcome | None:
    """`handle`, for an async handler in this event loop."""
    claim = context.claim
    with about(claim, context.tell_line), tracing.handling(claim) if is_traced else tracing.UNTRACED as note:
        how: Outcome | None = None
        try:
            how = outcome.of_result(await task.run_async(context))
        except asyncio.CancelledError:
            pass
        except BaseException as error:  # asyncio would let SystemExit end the whole worker
            if on_error is not None:
                on_error(error)
            how = outcome.of_exception(error, may_retry=task.may_retry(error))
        traceparent = note(how)
    return how if traceparent is None else outcome.traced(how, traceparent)


def pin(claim: Claim) -> None:
    """Let the calling thread, and what it starts, run on the CPUs of the claim alone.

    Nothing changes where the claim has none of its own, or the system cannot pin.

    Raises:
        OSError: This process may use none of these CPUs any more.
    """
    if cpus := _cpus_of(claim):
        os.sched_setaffinity(0, cpus)  # 0: this thread, not the whole process


@contextmanager
def pinned(claim: Claim) -> Iterator[None]:
    """The same for as long as it lasts; threads that are started meanwhile stay pinned."""
    if not _cpus_of(claim):
        yield
        return
    before = os.sched_getaffinity(0)
    pin(claim)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _cpus_of(claim: Claim) -> Collection[int]:
    if claim.assignment is None or not hasattr(os, "sched_setaffinity"):
        return ()
    return claim.assignment.cpus or ()
