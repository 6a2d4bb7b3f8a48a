"""hwqueue events: what happened, and who did it."""

import difflib
import select
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Annotated, Any
from uuid import UUID

import typer
from rich.console import Console
from rich.text import Text

from hwqueue.cli.completion import event_codes, node_names, queue_names
from hwqueue.cli.connect import open_client
from hwqueue.cli.inputs import find_node, identifier, moment_before, span
from hwqueue.cli.options import options_of
from hwqueue.cli.output import cell, show_items, to_json_line
from hwqueue.cli.patience import asking
from hwqueue.client import Client
from hwqueue.errors import ConfigError
from hwqueue.types import EVENT_CODES, Event

app = typer.Typer(no_args_is_help=True, help="What happened, and who did it.")

PAGE = 1000  # events asked for at once while following

Code = Annotated[
    list[str] | None, typer.Option(help="Only this code; repeatable.", autocompletion=event_codes)
]
Queue = Annotated[str | None, typer.Option(help="Only about this queue.", autocompletion=queue_names)]
Node = Annotated[
    str | None, typer.Option(help="Only about this node: name or id.", autocompletion=node_names)
]
Lease = Annotated[str | None, typer.Option(help="Only about this lease: its id.")]
Class = Annotated[int | None, typer.Option("--class", help="Only about this class.")]
Actor = Annotated[str | None, typer.Option(help="Only done by this one.")]


@app.command("list", epilog="Example: hwqueue events list --code node_drained --since 2d")
def list_(
    ctx: typer.Context,
    *,
    code: Code = None,
    queue: Queue = None,
    node: Node = None,
    lease: Lease = None,
    class_id: Class = None,
    actor: Actor = None,
    since: Annotated[str | None, typer.Option(help="Not before this time, or this span ago: 2h, 3d.")] = None,
    until: Annotated[str | None, typer.Option(help="Before this time, or this span ago.")] = None,
    limit: Annotated[int, typer.Option(help="Most events to show.", min=1, max=10_000)] = 50,
    before: Annotated[
        int | None, typer.Option(help="The last event_id of a page, to get the next one.")
    ] = None,
) -> None:
    """List events, newest first."""
    with open_client(ctx) as client:
        found = client.list_events(
            **_filter(
                client,
                code=code,
                queue=queue,
                node=node,
                lease=lease,
                class_id=class_id,
                actor=actor,
            ),
            since=moment_before(since, "--since"),
            until=moment_before(until, "--until"),
            before=before,
            limit=limit,
        )
    show_items(ctx, found, _row, empty="no such events")


@app.command(epilog="Example: hwqueue events tail --follow --queue renders")
def tail(
    ctx: typer.Context,
    *,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more, until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", help="To begin with.", min=0, max=10_000)] = 10,
    code: Code = None,
    queue: Queue = None,
    node: Node = None,
    lease: Lease = None,
    class_id: Class = None,
    actor: Actor = None,
    every: Annotated[str, typer.Option(help="How often to ask.")] = "1s",
) -> None:
    """Print the last events, oldest first, a line for each; with --json an object for each.

    While it follows, an event shows once no transaction is open that began before its own, so that
    none is missed. A server that is away is waited for.
    """
    pause = span(every, "--every")
    console = Console(soft_wrap=True)
    with open_client(ctx) as client:
        wanted = _filter(
            client,
            code=code,
            queue=queue,
            node=node,
            lease=lease,
            class_id=class_id,
            actor=actor,
        )
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


def _row(event: Event) -> dict[str, object]:
    return {
        "event_id": event.event_id,
        "at": event.at,
        "code": event.code,
        "actor": event.actor,
        "login": event.login,
        "message": event.message,
        "about": _subject(event),
    }


def _subject(event: Event) -> str:
    """Return what an event is about, as the options that find it."""
    subjects: Sequence[tuple[str, object]] = (
        ("queue", event.queue),
        ("lease", event.lease_id),
        ("node", event.node_id),
        ("class", event.class_id),
    )
    return " ".join(f"{name}={value}" for name, value in subjects if value is not None)


def _filter(
    client: Client,
    *,
    code: list[str] | None,
    queue: str | None,
    node: str | None,
    lease: str | None,
    class_id: int | None,
    actor: str | None,
) -> dict[str, Any]:
    return {
        "code": [checked_code(each) for each in code or ()] or None,
        "queue": queue,
        "node_id": None if node is None else _node_id(client, node),
        "lease_id": None if lease is None else identifier(lease, "--lease"),
        "class_id": class_id,
        "actor": actor,
    }


def _node_id(client: Client, text: str) -> UUID:
    """Return the node's id; one that is gone is known by its id only."""
    try:
        return UUID(text)
    except ValueError:
        return find_node(client, text).node_id


def checked_code(code: str, known: Sequence[str] = EVENT_CODES) -> str:
    """Refuse a code that no event has: a list of none looks like nothing happened."""
    if code in known:
        return code
    near = difflib.get_close_matches(code, known, n=3)
    raise ConfigError(
        f"--code: no event has the code {code[:80]!r}",
        hint=f"did you mean {' or '.join(near)}?" if near else f"one of {', '.join(known)}",
    )
