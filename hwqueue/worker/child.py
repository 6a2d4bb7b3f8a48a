"""Handlers that run in a child process of their own: the child's side.

Started by `hwqueue.worker.process` as `python -m hwqueue.worker.child`; not for direct use. The
job comes through standard input, the outcome goes back through standard output; the handler gets
an empty standard input, and what it prints goes to standard error.
"""

from __future__ import annotations

import asyncio
import importlib
import itertools
import json
import os
import pickle
import runpy
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from types import FrameType
from typing import Any

from hwqueue import logs
from hwqueue.app import Cancelled, Task
from hwqueue.errors import ConfigError
from hwqueue.handler import steps
from hwqueue.handler.attempt_log import MOST_LINES, Line, numbered
from hwqueue.handler.context import AsyncLeaseContext, LeaseContext
from hwqueue.handler.lease_facts import Report
from hwqueue.worker import outcome
from hwqueue.worker.handling import handle, handle_async, pin
from hwqueue.worker.kept_records import keeping_records
from hwqueue.worker.outcome import Outcome
from hwqueue.worker.process import LINES, OUTCOME, PROGRESS, QUESTION, SIZE_BYTES, Job

_PAUSE_SECONDS = 0.25  # between two messages of a kind


def main() -> int:
    """Run one job and report; the outcome is empty when the handler gave way to SIGTERM."""
    own_pid = os.getpid()
    control = _take_over(0, os.open(os.devnull, os.O_RDONLY))
    reports = _Reports(_take_over(1, os.dup(2)))
    job = pickle.loads(_read_message(control))
    threading.Thread(target=_hear_parent, args=(control, reports), daemon=True).start()
    pin(job.claim)
    ended = _run(job, reports)
    if os.getpid() != own_pid:
        os._exit(0)  # a copy that the handler forked off; the report is not its to make
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it has ended; a cut report would hide how
    reports.finish(b"" if ended is None else ended.to_json().encode())
    return 0


class _Reports:
    """The way to the worker: reports of progress, log lines and questions, then the outcome.

    A thread writes what the handler says: a signal, which ends the handler in the main thread,
    cuts no message. A message begins with its size: a process that the handler started may hold the
    pipe open. A copy of this process that the handler forked off has no such thread, and so reports
    nothing.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._writing = threading.Lock()
        self._told = threading.Event()
        self._unsent: Report | None = None
        self._lines: deque[Line] = deque(maxlen=MOST_LINES)
        self._own_pid = os.getpid()
        self._numbers = itertools.count(1)
        self._asked: dict[int, Future[Any]] = {}
        threading.Thread(target=self._run, daemon=True).start()

    def tell(self, report: Report) -> None:
        """Send this soon, unless a later one comes before."""
        self._unsent = report
        self._told.set()

    def tell_line(self, line: Line) -> None:
        """Send this soon, unless as many as are kept come before that."""
        self._lines.append(line)
        self._told.set()

    def ask(self, call: str, /, **arguments: Any) -> Any:
        """Ask the worker, and wait for its answer."""
        return self.begin(call, arguments).result()

    async def ask_async(self, call: str, /, **arguments: Any) -> Any:
        """The same in an event loop."""
        return await asyncio.wrap_future(self.begin(call, arguments))

    def begin(self, call: str, arguments: Mapping[str, Any]) -> Future[Any]:
        """Send a question; the answer comes later.

        In a thread of its own: a signal, which ends the handler in this one, must not cut it.
        """
        if call == "extend_claim":
            raise ConfigError(
                "extend is not available in a handler that runs in a process: the worker heartbeats "
                "its claim for as long as it runs"
            )
        steps.refuse_reading(call)
        if os.getpid() != self._own_pid:
            raise ConfigError("a process that the handler forked off has no steps: only it does")
        number = next(self._numbers)
        answer: Future[Any] = Future()
        self._asked[number] = answer
        message = json.dumps({"id": number, "call": call, "arguments": arguments}).encode()
        threading.Thread(target=self._send, args=(QUESTION, message), daemon=True).start()
        return answer

    def answered(self, message: bytes) -> None:
        """The worker has answered."""
        number, answer, error = pickle.loads(message)
        asked = self._asked.pop(number)
        if not asked.set_running_or_notify_cancel():
            return
        if error is None:
            asked.set_result(answer)
        else:
            asked.set_exception(error)

    def _send(self, kind: bytes, message: bytes) -> None:
        with self._writing:
            self._write(kind, message)

    def finish(self, ended: bytes) -> None:
        """Send what is left and the outcome, and close the pipe."""
        with self._writing:
            self._send_told()
            self._write(OUTCOME, ended)
            os.close(self._descriptor)

    def _run(self) -> None:
        while True:
            self._told.wait()
            with self._writing:
                self._send_told()
            time.sleep(_PAUSE_SECONDS)

    def _send_told(self) -> None:
        self._told.clear()
        report, self._unsent = self._unsent, None
        if report is not None:
            self._write(PROGRESS, json.dumps(report).encode())
        lines = [self._lines.popleft() for _ in range(len(self._lines))]
        if lines:
            self._write(LINES, json.dumps(lines).encode())

    def _write(self, kind: bytes, message: bytes) -> None:
        left = memoryview(kind + len(message).to_bytes(SIZE_BYTES, "big") + message)
        while left:
            left = left[os.write(self._descriptor, left) :]


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


def _read_message(control: int) -> bytes:
    return _read_exactly(control, int.from_bytes(_read_exactly(control, SIZE_BYTES), "big"))


def _hear_parent(control: int, reports: _Reports) -> None:
    """Take its answers, and die with it: it keeps its end open while it lives, however it dies."""
    with suppress(SystemExit):
        while True:
            reports.answered(_read_message(control))
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os._exit(1)


def _run(job: Job, reports: _Reports) -> Outcome | None:
    """The outcome, or None when the handler was cancelled."""
    if job.log is not None:
        logs.set_up(job.log)
    try:
        task = _load(job)  # may set up tracing, like everything else that the handler needs
    except BaseException as error:
        return outcome.of_exception(error)
    run = _run_async if task.is_async else _run_sync
    # they come here if SIGTERM meets what is around the handler
    with keeping_records(job.keep_logs), suppress(Cancelled, asyncio.CancelledError):
        return run(task, job, reports)
    return None


def _load(job: Job) -> Task[..., Any]:
    """Import the handler's module and find its task."""
    sys.path[:] = job.path
    if job.app is not None:
        return _load_from_app(job.app, job)
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
    _refuse_other_middleware(task, job, job.module)
    return task


def _load_from_app(located: str, job: Job) -> Task[..., Any]:
    """Import the app, whatever that sets up, and take its task."""
    module, _, name = located.partition(":")
    app = getattr(importlib.import_module(module), name)
    task: Task[..., Any] | None = app.tasks.get(job.claim.task_name)
    if task is None:
        raise ConfigError(f"{located} has no task {job.claim.task_name!r} in a child process")
    _refuse_other_middleware(task, job, located)
    return task


def _refuse_other_middleware(task: Task[..., Any], job: Job, module: str) -> None:
    names = task.middleware.names(is_async=task.is_async)
    if names != job.middleware:
        raise ConfigError(
            f"the worker has the middleware ({', '.join(job.middleware)}) around {job.name}, its "
            f"child process ({', '.join(names)}): add it in a module that {module} imports"
        )


def _run_sync(task: Task[..., Any], job: Job, reports: _Reports) -> Outcome | None:
    cancelled = threading.Event()

    def give_way(_number: int, _frame: FrameType | None) -> None:
        if not cancelled.is_set():
            cancelled.set()
            raise Cancelled

    signal.signal(signal.SIGTERM, give_way)
    _repeat_until(cancelled)
    context = LeaseContext(
        claim=job.claim,
        gang=job.gang,
        cancelled=cancelled,
        ask=reports.ask,
        tell_progress=reports.tell,
        tell_line=numbered(reports.tell_line),
    )
    return handle(task, context)


def _repeat_until(seen: threading.Event) -> None:
    """Send SIGTERM to this thread again, once it has come, until Python's handler has run.

    Python runs that between two instructions of the main thread. A signal that came just before a
    call that waits, or to another thread, would not end the call.
    """
    main = threading.get_ident()
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)

    def repeat() -> None:
        while os.read(woken, 1)[0] != signal.SIGTERM:
            pass
        while not seen.wait(0.05):
            signal.pthread_kill(main, signal.SIGTERM)

    threading.Thread(target=repeat, daemon=True).start()


def _run_async(task: Task[..., Any], job: Job, reports: _Reports) -> Outcome | None:
    async def run() -> Outcome | None:
        cancelled = asyncio.Event()
        running = asyncio.current_task()
        assert running is not None

        def give_way() -> None:
            cancelled.set()
            running.cancel()

        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, give_way)
        context = AsyncLeaseContext(
            claim=job.claim,
            gang=job.gang,
            cancelled=cancelled,
            ask=reports.ask_async,
            tell_progress=reports.tell,
            tell_line=numbered(reports.tell_line),
        )
        return await handle_async(task, context)

    return asyncio.run(run())


if __name__ == "__main__":
    sys.exit(main())
