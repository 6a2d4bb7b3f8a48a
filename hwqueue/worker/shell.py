"""The task `hwqueue.run`: a command instead of a handler, for `hwqueue run` and `--shell`.

It is a handler in a process like any other (`hwqueue.worker.child`): pinned to the CPUs of its
lease, with its GPUs alone in sight, asked to stop by SIGTERM. The command runs in the group of that
process, which the worker kills once the handler has ended or its grace is over.
"""

from __future__ import annotations

import codecs
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import IO

from hwqueue.app import App, BadParams, Cancelled, CommandFailed
from hwqueue.handler.attempt_log import MOST_BYTES
from hwqueue.handler.context import LeaseContext
from hwqueue.text import exact_duration
from hwqueue.worker.process import environment_of_gpus

TASK = "hwqueue.run"

_TIMED_OUT = 124  # as timeout(1) has it
_CANNOT_RUN, _NOT_FOUND = 126, 127  # as shells have it
_BY_SIGNAL = 128
_CHUNK_BYTES = 65_536
_GRACE_SECONDS = 5.0
# A process that the command has left behind may hold its output open.
_LAST_WORDS_SECONDS = 1.0

app = App()
"""An app of this task alone: `your_app.include(app)`."""


@app.task(TASK, process=True)
def run_command(
    context: LeaseContext,
    argv: list[str],
    env: dict[str, str] | None = None,
    cwd: str | None = None,
    timeout: timedelta | None = None,
) -> dict[str, int]:
    """Run a command; what it writes becomes log lines of the attempt.

    Args:
        argv: The program and its arguments. No shell reads them.
        env: Variables besides those of the worker; not those that say which GPUs it sees.
        cwd: Its working directory; None: the worker's.
        timeout: Longest run; then it gets SIGTERM, and SIGKILL five seconds later.

    Returns: `{"exit_status": 0}`.
    Raises: CommandFailed, BadParams.
    """
    command = _start(argv, _environment(context, env or {}), cwd)
    assert command.stdout is not None
    assert command.stderr is not None
    errors = _Last(lambda text: context.log(text, stream="stderr"))
    readers = [
        threading.Thread(target=_read, args=arguments, daemon=True)
        for arguments in ((command.stdout, context.log), (command.stderr, errors))
    ]
    for reader in readers:
        reader.start()
    is_over = False
    try:
        command.wait(None if timeout is None else timeout.total_seconds())
    except subprocess.TimeoutExpired:
        is_over = True
        _terminate(command, _GRACE_SECONDS)
    except Cancelled:
        _terminate(command, None)  # the worker kills it when its grace is over
        raise
    finally:
        for reader in readers:
            reader.join(_LAST_WORDS_SECONDS)
    if is_over:
        raise CommandFailed(f"ran longer than {exact_duration(timeout)}", _TIMED_OUT)
    return _result(command.returncode, errors.text)


def _environment(context: LeaseContext, given: Mapping[str, str]) -> dict[str, str]:
    """What the command sees; the worker has the last word about GPUs."""
    masked = {name: os.environ[name] for name in environment_of_gpus(()) if name in os.environ}
    its = {
        "HWQUEUE_LEASE_ID": str(context.lease_id),
        "HWQUEUE_ATTEMPT": str(context.attempt),
        "HWQUEUE_CLAIM_TOKEN": str(context.claim_token),
    }
    return {**os.environ, **given, **masked, **its}


def _start(argv: list[str], environment: Mapping[str, str], cwd: str | None) -> subprocess.Popen[bytes]:
    if not argv:
        raise BadParams("argv is empty: it is the program and its arguments")
    try:
        return subprocess.Popen(
            argv,
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    except ValueError as error:  # a name of a variable with "=", for example
        raise BadParams(f"cannot start {argv[0]!r}: {error}") from error
    except OSError as error:
        if cwd is not None and error.filename == cwd:
            why = f"cannot work in {cwd!r}: {error.strerror}"
            raise CommandFailed(why, _CANNOT_RUN) from error
        status = _NOT_FOUND if isinstance(error, FileNotFoundError) else _CANNOT_RUN
        raise CommandFailed(f"cannot start {argv[0]!r}: {error}", status) from error


def _terminate(command: subprocess.Popen[bytes], grace: float | None) -> None:
    """SIGTERM to all processes of the command, and wait for it, `grace` seconds at most."""
    if os.getpgrp() == os.getpid():  # a process of our own, and what it started
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.killpg(0, signal.SIGTERM)
    else:
        command.terminate()
    try:
        command.wait(grace)
    except subprocess.TimeoutExpired:
        command.kill()


def _result(returncode: int, last_error: str) -> dict[str, int]:
    """The result of a command that has ended. Raises: CommandFailed."""
    if returncode == 0:
        return {"exit_status": 0}
    if returncode < 0:
        name = signal.strsignal(-returncode)
        raise CommandFailed(f"killed by signal {-returncode} ({name})", _BY_SIGNAL - returncode)
    said = f": {last_error}" if last_error else ""
    raise CommandFailed(f"exit status {returncode}{said}", returncode)


class _Last:
    """Passes lines on, and keeps the last that says something."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self.text = ""

    def __call__(self, text: str) -> None:
        self.text = text.strip() or self.text
        self._tell(text)


def _read(stream: IO[bytes], tell: Callable[[str], None]) -> None:
    """Tell each line of a stream; long ones in pieces."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    rest = ""
    # unbuffered: what is there is read at once
    while chunk := os.read(stream.fileno(), _CHUNK_BYTES):
        *lines, rest = (rest + decoder.decode(chunk)).split("\n")
        if len(rest) > _CHUNK_BYTES:
            lines, rest = [*lines, rest], ""
        for line in lines:
            _tell_line(line, tell)
    if rest := rest + decoder.decode(b"", final=True):
        _tell_line(rest, tell)


def _tell_line(line: str, tell: Callable[[str], None]) -> None:
    """What a terminal would show of it in the end: a progress bar writes over itself."""
    for piece in _pieces(line.removesuffix("\r").rpartition("\r")[2]):
        tell(piece)


def _pieces(text: str) -> Iterator[str]:
    while len(encoded := text.encode()) > MOST_BYTES:
        piece = encoded[:MOST_BYTES].decode(errors="ignore")
        yield piece
        text = text[len(piece) :]
    yield text
