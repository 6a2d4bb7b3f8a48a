"""hwqueue events: what happened, and who did it."""

import difflib
import select
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text
from typer import Option

from hwqueue.cli.completion import event_codes, node_names, queue_names
from hwqueue.cli.connect import asking, open_client
from hwqueue.cli.groups import Commands
from hwqueue.cli.inputs import identifier, moment_before, node_id_of, span
from hwqueue.cli.options import options_of
from hwqueue.cli.output import cell, show_items, to_json_line
from hwqueue.cli.tables import row_of
from hwqueue.client import Client
from hwqueue.errors import ConfigError
from hwqueue.types import EVENT_CODES, Event

app = Commands("What happened, and who did it.")

PAGE = 1000  # events asked for at once while following


@dataclass(frozen=True, kw_only=True)
class Filter:
    """Which events a command means."""

    code: Annotated[
        list[str] | None, Option(help="Only this code; repeatable.", autocompletion=event_codes)
    ] = None
    queue: Annotated[str | None, Option(help="Only about this queue.", autocompletion=queue_names)] = None
    node: Annotated[
        str | None, Option(help="Only about this node: name or id.", autocompletion=node_names)
    ] = None
    lease: Annotated[str | None, Option(help="Only about this lease: its id.")] = None
    class_id: Annotated[int | None, Option("--class", help="Only about this class.")] = None
    actor: Annotated[str | None, Option(help="Only done by this one.")] = None

    def of(self, client: Client) -> dict[str, Any]:
        """What was typed, as a client takes it. Raises: ConfigError, NodeUnknown."""
        return {
            "code": [checked_code(each) for each in self.code or ()] or None,
            "queue": self.queue,
            "node_id": None if self.node is None else node_id_of(client, self.node),
            "lease_id": None if self.lease is None else identifier(self.lease, "--lease"),
            "class_id": self.class_id,
            "actor": self.actor,
        }


@app.command("hwqueue events list --code node_drained --since 2d")
def list_(
    ctx: typer.Context,
    *,
    about: Filter,
    since: Annotated[str | None, Option(help="Not before this time, or this span ago: 2h, 3d.")] = None,
    until: Annotated[str | None, Option(help="Before this time, or this span ago.")] = None,
    limit: Annotated[int, Option(help="Most events to show.", min=1, max=10_000)] = 50,
    before: Annotated[int | None, Option(help="The last event_id of a page, to get the next one.")] = None,
) -> None:
    """List events, newest first."""
    with open_client(ctx) as client:
        found = client.list_events(
            **about.of(client),
            since=moment_before(since, "--since"),
            until=moment_before(until, "--until"),
            before=before,
            limit=limit,
        )
    show_items(ctx, found, _row, empty="no such events")


@app.command("hwqueue events tail --follow --queue renders")
def tail(
    ctx: typer.Context,
    *,
    follow: Annotated[bool, Option("--follow", "-f", help="Wait for more, until Ctrl-C.")] = False,
    lines: Annotated[int, Option("--lines", "-n", help="To begin with.", min=0, max=10_000)] = 10,
    about: Filter,
    every: Annotated[str, Option(help="How often to ask.")] = "1s",
) -> None:
    """Print the last events, oldest first, a line for each; with --json an object for each.

    While it follows, an event shows once no transaction is open that began before its own, so that
    none is missed. A server that is away is waited for.
    """
    pause = span(every, "--every")
    console = Console(soft_wrap=True)
    with open_client(ctx) as client:
        wanted = about.of(client)
        newest = client.list_events(**wanted, final=follow, limit=max(lines, 1))
        for event in reversed(newest[:lines]):
            _print(ctx, console, event)
        if not follow:
            return
        try:
            after = newest[0].event_id if newest else 0
            for event in _following(ctx, client, wanted, after, pause.total_seconds()):
                _print(ctx, console, event)
        except KeyboardInterrupt:
            return


def _following(
    ctx: typer.Context, client: Client, wanted: dict[str, Any], after: int, pause: float
) -> Iterator[Event]:
    """Yield what comes, until the reader of our output has gone."""
    ask = asking(ctx)
    while not _reader_has_gone():
        found = ask(client.list_events, after=after, limit=PAGE, **wanted)
        for event in found:
            yield event
            after = event.event_id
        if len(found) < PAGE:
            time.sleep(pause)


def _reader_has_gone() -> bool:
    """Whether standard output is a pipe that nobody reads any more; else silence would hide it."""
    try:
        output = sys.stdout.fileno()
    except (OSError, ValueError):  # it is no file: a test's, say
        return False
    watch = select.poll()
    watch.register(output, 0)
    return any(flags & (select.POLLERR | select.POLLHUP) for _, flags in watch.poll(0))


def _print(ctx: typer.Context, console: Console, event: Event) -> None:
    if options_of(ctx).json:
        typer.echo(to_json_line(event))
        return
    line = Text.assemble(
        (cell(event.at).plain, "dim"),
        "  ",
        (cell(event.code).plain, "bold"),
        "  ",
        (cell(event.actor).plain, "cyan"),
        "  ",
        cell(event.message.replace("\n", " ")).plain,
        (f"  {cell(_subject(event)).plain}", "dim"),
    )
    if console.is_terminal:
        console.print(line)
    else:
        typer.echo(line.plain.rstrip())


def _subject(event: Event) -> str:
    """Return what an event is about, as the options that find it."""
    subjects: Sequence[tuple[str, object]] = (
        ("queue", event.queue),
        ("lease", event.lease_id),
        ("node", event.node_id),
        ("class", event.class_id),
    )
    return " ".join(f"{name}={value}" for name, value in subjects if value is not None)


_row = row_of(Event, "event_id at code actor login message about", about=_subject)


def checked_code(code: str, known: Sequence[str] = EVENT_CODES) -> str:
    """Refuse a code that no event has: a list of none looks like nothing happened."""
    if code in known:
        return code
    near = difflib.get_close_matches(code, known, n=3)
    raise ConfigError(
        f"--code: no event has the code {code[:80]!r}",
        hint=f"did you mean {' or '.join(near)}?" if near else f"one of {', '.join(known)}",
    )
