"""Handlers that run in a child process of their own: the parent's side.

The child is a fresh interpreter. What it may see (`CUDA_VISIBLE_DEVICES`) is in its environment
from the first instruction on, and it pins itself to its CPUs before it imports the handler, so
that libraries that look at either while they are imported see the right thing.
"""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, cast

from hwqueue import logs
from hwqueue.app import Task
from hwqueue.errors import HwqueueError
from hwqueue.handler import steps
from hwqueue.handler.gang import GangContext
from hwqueue.handler.lease_facts import Report
from hwqueue.logs import TellLine
from hwqueue.types import Claim
from hwqueue.worker import outcome
from hwqueue.worker.outcome import Outcome

OUTCOME, PROGRESS, LINES, QUESTION = b"O", b"P", b"L", b"Q"
"""Kinds of messages that a child sends."""
SIZE_BYTES = 8
"""Before each message, either way; a child gets the job, then answers to its questions, pickled."""

_STANDARD_OUTPUT = 1
_CREDENTIALS = ("PG", "HWQUEUE_")
# No queue keeps a result of such a size; the worker must not hold it either.
_MOST_REPORTED_BYTES = 100 * 1024 * 1024
_PARSED_AT_ONCE_BYTES = 1024 * 1024
# A process that has left the group may hold the pipe open after a child that died unreported.
_LAST_WORDS_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What the child is sent.

    Attributes:
        module: Name of the handler's module, or path of the script that defines it.
        is_script: Which of the two.
        name: The handler's name in the module.
        path: `sys.path` of the parent.
        claim: What to run it on.
        middleware: Names of the middleware that the parent has for it.
        log: How the parent writes its log; None: as the handler's module sets it up.
        app: `module:name` of the app that has the task; None: the handler's module has it.
        keep_logs: Records of which level are kept with the attempt.
        gang: What the handler is told about its gang.
    """

    module: str
    is_script: bool
    name: str
    path: tuple[str, ...]
    claim: Claim
    middleware: tuple[str, ...]
    log: logs.LogSettings | None
    app: str | None
    keep_logs: logs.LogLevel | None
    gang: GangContext | None


class Told(NamedTuple):
    """Who is told what the child says: how far it has come, what it logs, and what it asks."""

    progress: Callable[[Report], None] = lambda _report: None
    line: TellLine = lambda _line: None
    ask: Callable[[str, Mapping[str, Any]], Awaitable[Any]] = lambda call, _arguments: steps.ask_nobody(call)


def job_for(
    task: Task[..., Any],
    claim: Claim,
    app: str | None = None,
    keep_logs: logs.LogLevel | None = None,
    gang: GangContext | None = None,
) -> Job:
    """The job of one claim. app: its app, if a child is to import that."""
    module, is_script = _locate(task)
    return Job(
        module=module,
        is_script=is_script,
        name=task.handler.__qualname__,
        path=tuple(sys.path),
        claim=claim,
        middleware=task.middleware.names(is_async=task.is_async),
        log=logs.settings_in_force(),
        app=app,
        keep_logs=keep_logs,
        gang=gang,
    )


def _locate(task: Task[..., Any]) -> tuple[str, bool]:
    """Where a child can load the handler from, and whether that is the path of a script."""
    module = task.handler.__module__
    if module != "__main__":
        return module, False
    main = sys.modules["__main__"]
    if main.__spec__ is not None:  # python -m name
        return main.__spec__.name, False
    return str(Path(main.__file__ or "").resolve()), True


def environment_for(claim: Claim, gpu_names: tuple[str, ...], passed: tuple[str, ...] = ()) -> dict[str, str]:
    """The child's environment: the parent's, narrowed to the GPUs of the assignment.

    Without what may hold the worker's credentials (`PG*`, `HWQUEUE_*`), but for those `passed`: a
    handler has no need of them. This keeps nothing from code that looks for it on purpose: the
    child runs as the worker's user.

    On a node that declares GPUs a lease sees its own and no other, none if it asked for none. On
    any other node `CUDA_VISIBLE_DEVICES` stays as it is.
    """
    environment = {
        name: value
        for name, value in os.environ.items()
        if name in passed or not name.startswith(_CREDENTIALS)
    }
    if gpu_names:
        given = claim.assignment.gpus if claim.assignment else ()
        environment |= environment_of_gpus(gpu_names[gpu.index] for gpu in given)
    return environment


def environment_of_gpus(names: Iterable[str]) -> dict[str, str]:
    """The variables that let a process see these GPUs alone: of CUDA, and of HIP, which has two."""
    visible = ",".join(names)
    return {
        "CUDA_VISIBLE_DEVICES": visible,
        "HIP_VISIBLE_DEVICES": visible,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }


async def run_in_process(
    job: Job, environment: Mapping[str, str], grace: timedelta, now: asyncio.Event, told: Told | None = None
) -> Outcome:
    """Run a handler in a child process until it ends; what it started ends with it.

    Cancelling the caller sends SIGTERM, then SIGKILL to the child's process group after `grace`
    or when `now` is set. A child that still reports an outcome after SIGTERM is believed, unless
    its time was over.

    Raises:
        CancelledError: The caller was cancelled and the child ended without an outcome.
    """
    payload = pickle.dumps(job)
    transport, child = await asyncio.get_running_loop().subprocess_exec(
        _Child,
        sys.executable,
        "-m",
        "hwqueue.worker.child",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=None,
        env=environment,
        start_new_session=True,  # Ctrl-C in a terminal is for the worker, not for its children
    )
    talk = asyncio.ensure_future(_talk(transport, child, payload, told or Told()))
    try:
        report = await asyncio.shield(talk)
    except asyncio.CancelledError:
        report = await _stop(transport, talk, grace, now)
        if report in (None, outcome.CANCELLED_ITSELF):
            raise
    if report is None:
        return _died(transport.get_returncode())
    return report


class _Child(asyncio.SubprocessProtocol):
    """What comes from the child, and its end.

    asyncio's own `Process` waits until every copy of the pipe is closed, and a process that the
    handler forked may hold one for ever.

    Attributes:
        said: What it writes; at its end once nobody holds the other end any more.
        exited: Set when the process itself has ended, whatever it has left behind.
        answering: The answers to its questions that are under way.
    """

    def __init__(self) -> None:
        self.said = asyncio.StreamReader()
        self.exited = asyncio.Event()
        self.answering: set[asyncio.Future[None]] = set()

    def pipe_data_received(self, _descriptor: int, data: bytes) -> None:
        """Part of a message."""
        self.said.feed_data(data)

    def pipe_connection_lost(self, descriptor: int, _error: Exception | None) -> None:
        """Nobody holds the other end any more."""
        if descriptor == _STANDARD_OUTPUT:
            self.said.feed_eof()

    def process_exited(self) -> None:
        """The child itself has ended."""
        self.exited.set()


async def _hear(transport: asyncio.SubprocessTransport, child: _Child, told: Told) -> bytes | None:
    """Pass on what the child says, until it reports its outcome; None: it did not.

    Its messages are a kind (a byte), a size (eight bytes) and JSON. Reports of progress, log lines
    and questions come first, as many as there are; the last message is the outcome.
    """
    said = child.said
    with suppress(asyncio.IncompleteReadError):
        while True:
            kind, size = await said.readexactly(1), await said.readexactly(SIZE_BYTES)
            if (length := int.from_bytes(size, "big")) > _MOST_REPORTED_BYTES:
                _send_to_group(transport, signal.SIGKILL)
                return _too_large(length).to_json().encode()
            message = await said.readexactly(length)
            if kind == OUTCOME:
                return message
            if kind == PROGRESS:
                told.progress(json.loads(message))
            elif kind == LINES:
                for line in json.loads(message):
                    told.line(line)
            else:
                answer = asyncio.ensure_future(_answer(transport, told, json.loads(message)))
                child.answering.add(answer)
                answer.add_done_callback(child.answering.discard)
    return None


async def _answer(transport: asyncio.SubprocessTransport, told: Told, question: Mapping[str, Any]) -> None:
    """Let a question be answered, and send the answer, or the error that was."""
    answer: Any = None
    error: BaseException | None = None
    try:
        answer = await told.ask(question["call"], question["arguments"])
    except Exception as raised:
        error = raised.with_traceback(None)
        error.__cause__ = None  # psycopg's own errors hold what cannot be pickled
    pipe = _input_of(transport)
    if not pipe.is_closing():  # nobody waits for the answer otherwise
        send(pipe, _packed(question["id"], answer, error))


def _packed(number: int, answer: Any, error: BaseException | None) -> bytes:
    try:
        return pickle.dumps((number, answer, error))
    except Exception:  # an error of a library that cannot be sent; its text can
        return pickle.dumps((number, None, HwqueueError(str(error))))


def _input_of(transport: asyncio.SubprocessTransport) -> asyncio.WriteTransport:
    """Where the child's standard input is written."""
    return cast(asyncio.WriteTransport, transport.get_pipe_transport(0))


def send(pipe: asyncio.WriteTransport, message: bytes) -> None:
    """Send a child a message."""
    pipe.write(len(message).to_bytes(SIZE_BYTES, "big") + message)


async def _talk(
    transport: asyncio.SubprocessTransport, child: _Child, payload: bytes, told: Told
) -> Outcome | None:
    """Send the job, wait for the end; the outcome the child reported, if it did."""
    hearing = asyncio.ensure_future(_hear(transport, child, told))
    send(_input_of(transport), payload)
    await child.exited.wait()
    _send_to_group(transport, signal.SIGKILL)  # what the handler started and did not wait for
    await asyncio.wait({hearing}, timeout=_LAST_WORDS_SECONDS)
    transport.close()
    if not hearing.done():
        hearing.cancel()
        return None
    report = hearing.result()
    if report is None:
        return None
    if len(report) > _PARSED_AT_ONCE_BYTES:
        return await asyncio.to_thread(Outcome.from_json, report)
    return Outcome.from_json(report) if report else outcome.CANCELLED_ITSELF


async def _stop(
    transport: asyncio.SubprocessTransport,
    talk: asyncio.Future[Outcome | None],
    grace: timedelta,
    now: asyncio.Event,
) -> Outcome | None:
    """SIGTERM, then SIGKILL for the whole group; the outcome the child still reported."""
    hurry = asyncio.ensure_future(now.wait())
    either: set[asyncio.Future[Any]] = {talk, hurry}
    try:
        with suppress(ProcessLookupError):  # it may just have ended
            transport.send_signal(signal.SIGTERM)
        await asyncio.wait(either, timeout=grace.total_seconds(), return_when=asyncio.FIRST_COMPLETED)
    finally:
        hurry.cancel()
        if not talk.done():
            _send_to_group(transport, signal.SIGKILL)
    return await talk


def _send_to_group(transport: asyncio.SubprocessTransport, number: signal.Signals) -> None:
    # The child leads its own session, hence its own group, which lives on without it.
    with suppress(ProcessLookupError, PermissionError):  # empty; on macOS: nothing but zombies
        os.killpg(transport.get_pid(), number)


def _too_large(size: int) -> Outcome:
    return outcome.failure(
        "ResultRefused",
        f"the handler's process reported {size} bytes, more than {_MOST_REPORTED_BYTES}",
        retry=False,
    )


def _died(returncode: int | None) -> Outcome:
    if returncode is not None and returncode < 0:
        ended = f"was killed by signal {-returncode} ({signal.strsignal(-returncode)})"
    else:
        ended = f"left with exit code {returncode}"
    return outcome.failure("ProcessDied", f"the handler's process {ended} without an outcome")
