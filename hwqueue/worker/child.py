"""Handlers that run in a child process of their own: the child's side.

Started by `hwqueue.worker.process` as `python -m hwqueue.worker.child`; not for direct use. The
job comes through standard input, the outcome goes back through standard output; the handler gets
an empty standard input, and what it prints goes to standard error.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import pickle
import runpy
import signal
import sys
import threading
from datetime import timedelta
from types import FrameType
from typing import Any, NoReturn

from hwqueue import logs
from hwqueue.app import Cancelled, Task
from hwqueue.context import AsyncLeaseContext, LeaseContext
from hwqueue.errors import ConfigError
from hwqueue.worker import outcome
from hwqueue.worker.outcome import Outcome
from hwqueue.worker.pinning import pin
from hwqueue.worker.process import Job


def main() -> int:
    """Run one job and report; the report is empty when the handler gave way to SIGTERM.

    The report begins with its length: a process that the handler started may hold the pipe open.
    """
    own_pid = os.getpid()
    control = _take_over(0, os.open(os.devnull, os.O_RDONLY))
    reports = _take_over(1, os.dup(2))
    size = int.from_bytes(_read_exactly(control, 8), "big")
    job = pickle.loads(_read_exactly(control, size))
    threading.Thread(target=_die_with_parent, args=(control,), daemon=True).start()
    pin(job.claim)
    ended = _run(job)
    if os.getpid() != own_pid:
        os._exit(0)  # a copy that the handler forked off; the report is not its to make
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it has ended; a cut report would hide how
    report = b"" if ended is None else ended.to_json().encode()
    with os.fdopen(reports, "wb") as pipe:
        pipe.write(len(report).to_bytes(8, "big") + report)
    return 0


def _take_over(descriptor: int, replacement: int) -> int:
    """Keep a standard stream for ourselves, out of the handler's reach, and put another there."""
    kept = os.dup(descriptor)
    os.dup2(replacement, descriptor)
    os.close(replacement)
    return kept


def _read_exactly(descriptor: int, size: int) -> bytes:
    chunks = bytearray()
    while len(chunks) < size:
        chunk = os.read(descriptor, min(size - len(chunks), 1 << 20))
        if not chunk:
            sys.exit("the worker went away before it sent the job")
        chunks += chunk
    return bytes(chunks)


def _die_with_parent(control: int) -> None:
    """The worker keeps its end open while it lives, however it dies."""
    os.read(control, 1)
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(1)


def _run(job: Job) -> Outcome | None:
    """The outcome, or None when the handler was cancelled."""
    if job.log is not None:
        logs.set_up(job.log)
    try:
        task = _load(job)  # may set up tracing, like everything else that the handler needs
    except BaseException as error:
        return outcome.of_exception(error)
    with outcome.traced(job.claim) as ended:
        try:
            result = _run_async(task, job) if task.is_async else _run_sync(task, job)
            return ended(outcome.of_result(result))
        except (Cancelled, asyncio.CancelledError):
            return ended(None)
        except BaseException as error:  # SystemExit, too: the handler ended, the process reports it
            return ended(outcome.of_exception(error, may_retry=task.may_retry(error)))


def _load(job: Job) -> Task[..., Any]:
    """Import the handler's module and find its task."""
    sys.path[:] = job.path
    if job.is_script:
        namespace = runpy.run_path(job.module, run_name="__hwqueue_child__")
    else:
        namespace = vars(importlib.import_module(job.module))
    task = namespace.get(job.name)
    if not isinstance(task, Task):
        raise ConfigError(
            f"{job.module} has no task {job.name!r}: a handler that runs in a "
            "process must be decorated with @app.task where it is defined"
        )
    names = task.middleware.names(is_async=task.is_async)
    if names != job.middleware:
        raise ConfigError(
            f"the worker has the middleware ({', '.join(job.middleware)}) around {job.name}, its "
            f"child process ({', '.join(names)}): add it in a module that {job.module} imports"
        )
    return task


def _run_sync(task: Task[..., Any], job: Job) -> Any:
    cancelled = threading.Event()

    def give_way(_number: int, _frame: FrameType | None) -> NoReturn:
        cancelled.set()
        raise Cancelled

    signal.signal(signal.SIGTERM, give_way)
    context = LeaseContext(claim=job.claim, cancelled=cancelled, extend_claim=_refuse_extend)
    return task.run(context)


def _run_async(task: Task[..., Any], job: Job) -> Any:
    async def run() -> Any:
        cancelled = asyncio.Event()
        running = asyncio.current_task()
        assert running is not None

        def give_way() -> None:
            cancelled.set()
            running.cancel()

        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, give_way)
        context = AsyncLeaseContext(
            claim=job.claim, cancelled=cancelled, extend_claim=_refuse_extend
        )
        return await task.run_async(context)

    return asyncio.run(run())


def _refuse_extend(_by: timedelta) -> NoReturn:
    raise ConfigError(
        "extend is not available in a handler that runs in a process: the worker heartbeats its "
        "claim for as long as it runs"
    )


if __name__ == "__main__":
    sys.exit(main())
