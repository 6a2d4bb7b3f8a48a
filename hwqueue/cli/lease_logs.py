"""Log lines of leases: as they are, or followed until their lease has ended."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from uuid import UUID

import typer
from rich.console import Console

from hwqueue.cli.connect import asking
from hwqueue.cli.options import options_of
from hwqueue.cli.output import plain_text, say, to_json_line
from hwqueue.client import Client
from hwqueue.client._ends import ENDED
from hwqueue.text import first_line, plural
from hwqueue.types import Lease, LeaseState, LogLine

_PAGE = 1000
_LOOK_EVERY_SECONDS = 0.5
_STYLES = {"debug": "dim", "warning": "yellow", "error": "red"}

Show = Callable[[LogLine], None]
Pause = Callable[[float, LeaseState], None]


@dataclass(kw_only=True)
class Lines:
    """The log lines of a lease, from one look to the next.

    Attributes:
        client: Reads them.
        lease_id: Of this lease.
        attempt: Of this attempt alone; None: of all.
        after: The cursor of the last line that was read; None: none was.
    """

    client: Client
    lease_id: UUID
    attempt: int | None = None
    after: str | None = None

    def last(self, count: int) -> list[LogLine]:
        """The last lines; the next look begins after them. Raises: LeaseNotFound."""
        return self._read(count, last=True)

    def new(self) -> Iterator[LogLine]:
        """What has come since the last look. Raises: LeaseNotFound."""
        while found := self.page():
            yield from found

    def page(self) -> list[LogLine]:
        """The next of it, at most a thousand lines; none when there is no more, for now."""
        return self._read(_PAGE)

    def _read(self, limit: int, *, last: bool = False) -> list[LogLine]:
        found = self.client.lease_logs(
            self.lease_id, after=self.after, attempt=self.attempt, last=last, limit=limit
        )
        if found:
            self.after = found[-1].cursor
        return found


def _sleep(seconds: float, _state: LeaseState) -> None:
    time.sleep(seconds)


def follow(ctx: typer.Context, lines: Lines, show: Show, pause: Pause = _sleep) -> Lease:
    """Show new lines until the lease has ended, and return it. A server that is away is waited for.

    Args:
        pause: Waits between two looks; told the state of the lease.

    Raises: LeaseNotFound, and what `pause` raises.
    """
    ask = asking(ctx)
    while True:
        # the state comes first: of a lease that has ended no line comes any more
        [now] = ask(lines.client.await_leases, [lines.lease_id])
        while page := ask(lines.page):
            for line in page:
                show(line)
        if now.state is None or now.state in ENDED:
            return ask(lines.client.get_lease, lines.lease_id)
        pause(_LOOK_EVERY_SECONDS, now.state)


def printer(ctx: typer.Context) -> Show:
    """Prints lines with their times, levels and fields; with --json an object for each."""
    console = Console(soft_wrap=True, highlight=False)
    attempts: set[int] = set()

    def show(line: LogLine) -> None:
        if options_of(ctx).json:
            typer.echo(to_json_line(line))
            return
        if line.claim_token not in attempts:
            attempts.add(line.claim_token)
            say(ctx, f"attempt {line.attempt}:")
        tell_dropped(ctx, line)
        fields = f"  {plain_text(line.fields)}" if line.fields else ""
        # what follows in a message of several lines is indented: it begins no line of ours
        message = "\n  ".join(map(plain_text, line.message.split("\n")))
        text = f"{plain_text(line.logged_at)} {line.level:<7} {message}{fields}"
        if console.is_terminal:
            console.print(text, style=_STYLES.get(line.level), markup=False)
        else:
            typer.echo(text)

    return show


def tell_dropped(ctx: typer.Context, line: LogLine) -> None:
    """Say how many lines are missing before this one."""
    if line.dropped:
        say(ctx, f"... {plural(line.dropped, 'line')} not kept")


def mention(ctx: typer.Context, client: Client, lease_id: UUID) -> None:
    """Say where the log of a lease is, if it has one, with its last line."""
    if options_of(ctx).json:
        return
    for line in client.lease_logs(lease_id, last=True, limit=1):
        last = first_line(line.message)
        say(ctx, f"log: {plural(line.line, 'line')} of attempt {line.attempt}, the last: {last}")
        say(ctx, f"all of it: hwqueue lease logs {lease_id}")
