"""hwqueue run: a command on a node that fits, as if it ran here."""

import itertools
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Annotated

import typer
from typer import Argument, Option

from hwqueue.cli import spawning
from hwqueue.cli.completion import queue_names
from hwqueue.cli.connect import asking, open_client
from hwqueue.cli.inputs import span
from hwqueue.cli.lease_logs import Lines, Pause, Show, follow, printer, tell_dropped
from hwqueue.cli.lease_view import error_line
from hwqueue.cli.options import options_of
from hwqueue.cli.output import ExitCode, fields_of, readable, say, show_one, to_json_line
from hwqueue.errors import ConfigError, LeaseFinished
from hwqueue.stopping import handled_by
from hwqueue.types import Lease, LeaseState, LogLine, SpawnResult
from hwqueue.worker.shell import run_command

EXAMPLE = "hwqueue run --queue renders --tags '{\"gpu\": true}' -- ./train.sh --epochs 3"

_INTERRUPTED = 130  # 128 and the number of SIGINT, as shells have it
_LOOKS_BEFORE_HINT = 6
_HEAR_EVERY_SECONDS = 0.1


def run(
    ctx: typer.Context,
    argv: Annotated[
        list[str], Argument(help="The program and its arguments, after --; no shell reads them.")
    ],
    *,
    queue: Annotated[str, Option(help="Queue to put it in.", autocompletion=queue_names)] = "default",
    env: Annotated[
        list[str] | None, Option(help="Variable that it sees, NAME=VALUE; NAME: as it is here; repeatable.")
    ] = None,
    cwd: Annotated[str | None, Option(help="Its working directory on the node; else the worker's.")] = None,
    timeout: Annotated[str | None, Option(help="Longest run, such as 2h; then the attempt fails.")] = None,
    wait: Annotated[
        bool, Option("--wait/--detach", help="Show its output and wait; or print its id.")
    ] = True,
    flags: spawning.Flags,
) -> None:
    """Run a command on a node whose worker allows it (`hwqueue worker run --shell`).

    Shows its output as it comes and exits with its exit status. Ctrl-C cancels the lease; pressed
    again it leaves without waiting. With 6 if the lease was cancelled by others, with 1 if it
    failed without an exit status.
    """
    options = flags.spawn_options()
    job = run_command.spec(argv, env=_variables(env or []), cwd=cwd, timeout=span(timeout, "--timeout"))
    with open_client(ctx) as client:
        spawned = spawning.spawn_lease(client, queue, job.task, job.params, options)
        warnings = spawning.warn(ctx, client, spawned.lease_id, spawned.warnings)
        if not wait:
            _tell(ctx, spawned, warnings)
            return
        say(ctx, f"lease {spawned.lease_id} in queue {queue}; Ctrl-C cancels it")
        code = _attend(ctx, Lines(client=client, lease_id=spawned.lease_id))
    raise typer.Exit(code)


def _tell(ctx: typer.Context, spawned: SpawnResult, warnings: list[str]) -> None:
    """Print the id alone, for `id=$(hwqueue run --detach ...)`; with --json the facts."""
    if options_of(ctx).json:
        facts = ("lease_id", "state", "created")
        show_one(ctx, {name: getattr(spawned, name) for name in facts} | {"warnings": warnings})
        return
    typer.echo(spawned.lease_id)
    if not spawned.created:
        say(ctx, f"it was there before, and is {spawned.state.value}")


def _variables(given: list[str]) -> dict[str, str]:
    """Read `NAME=VALUE`, or `NAME` of a variable here. Raises: ConfigError."""
    found = {}
    for item in given:
        name, sign, value = item.partition("=")
        if not sign and name not in os.environ:
            raise ConfigError(f"--env: there is no variable {name[:80]!r} here")
        found[name] = value if sign else os.environ[name]
    return found


def _attend(ctx: typer.Context, lines: Lines) -> int:
    """Show the output until the lease has ended; what to exit with."""
    show = printer(ctx) if options_of(ctx).json else _output(ctx)
    with _interrupts() as interrupted:
        try:
            lease = follow(ctx, lines, show, _pausing(ctx, lines, interrupted))
        except _Interrupted:
            say(ctx, "cancelling the lease; Ctrl-C again leaves without waiting")
            try:
                with suppress(LeaseFinished):
                    reason = "Ctrl-C in hwqueue run"
                    asking(ctx)(lines.client.cancel_lease, lines.lease_id, reason=reason)
                lease = follow(ctx, lines, show)
            except KeyboardInterrupt:
                return _INTERRUPTED
    if options_of(ctx).json:
        facts = fields_of(lease)
        typer.echo(to_json_line({name: facts[name] for name in ("lease_id", "state", "error")}))
    if lease.state is LeaseState.CANCELLED:
        say(ctx, "cancelled")
        return _INTERRUPTED if interrupted.is_set else ExitCode.CANCELLED
    return _exit_status(ctx, lease)


def _exit_status(ctx: typer.Context, lease: Lease) -> int:
    """The exit status of its command, or 1 when it never came to one."""
    if lease.state is LeaseState.COMPLETED:
        return ExitCode.OK
    say(ctx, f"attempt {lease.attempt} of {lease.max_attempts} failed: {error_line(lease.error)}")
    status = lease.error.get("exit_status") if isinstance(lease.error, Mapping) else None
    return status if isinstance(status, int) and 0 < status < 256 else ExitCode.FAILED


def _output(ctx: typer.Context) -> Show:
    """Prints what the command wrote, to the stream it wrote it to, and says of new attempts."""
    attempts: set[int] = set()

    def show(line: LogLine) -> None:
        if line.claim_token not in attempts:
            attempts.add(line.claim_token)
            if len(attempts) > 1:
                say(ctx, f"attempt {line.attempt}:")
        tell_dropped(ctx, line)
        to_stderr = (line.fields or {}).get("stream") == "stderr"
        screen = sys.stderr if to_stderr else sys.stdout
        # a file gets it as it is; what is on a screen moves no cursor of it
        text = readable(line.message) if screen.isatty() else line.message
        typer.echo(text, err=to_stderr)

    return show


class _Interrupted(Exception):
    """Ctrl-C was pressed."""


@dataclass
class _Interrupt:
    """Whether it was. No event of `threading`: a handler of signals may take no lock."""

    is_set: bool = False


def _pausing(ctx: typer.Context, lines: Lines, interrupted: _Interrupt) -> Pause:
    """What waits between two looks, hears Ctrl-C, and says once why nothing may be happening."""
    looks = itertools.count(1)

    def pause(seconds: float, state: LeaseState) -> None:
        if next(looks) == _LOOKS_BEFORE_HINT and state is LeaseState.PENDING:
            say(ctx, f"it waits; why: hwqueue lease explain {lines.lease_id}")
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(left, _HEAR_EVERY_SECONDS))
            if interrupted.is_set:
                raise _Interrupted

    return pause


@contextmanager
def _interrupts() -> Iterator[_Interrupt]:
    """Set by the first Ctrl-C, which breaks no call to the database; the second ends what waits."""
    pressed = _Interrupt()

    def on_interrupt(_number: int, _frame: FrameType | None) -> None:
        pressed.is_set = True
        signal.signal(signal.SIGINT, signal.default_int_handler)

    with handled_by(on_interrupt, [signal.SIGINT]):
        yield pressed
