"""hwqueue queue: make, watch, stop and drop queues."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import typer
from typer import Argument, Option

from hwqueue.cli import bulk
from hwqueue.cli.completion import queue_names
from hwqueue.cli.connect import ask, open_client
from hwqueue.cli.groups import Commands
from hwqueue.cli.inputs import json_object
from hwqueue.cli.options import options_of
from hwqueue.cli.output import fields_of, say, show_item, show_items, show_one
from hwqueue.cli.tables import row_of
from hwqueue.cli.worker import AppName, app_of
from hwqueue.client import Client
from hwqueue.client._spawn import POLICY_SPANS
from hwqueue.errors import ConfigError, QueueUnknown
from hwqueue.meanings import meanings
from hwqueue.text import age, exact_duration
from hwqueue.types import BulkPage, BulkResult, Queue, QueueDepth

app = Commands("Make, watch, stop and drop queues.")

_KEYS = f"keys {', '.join(meanings()['policy'])}"
Name = Annotated[str, Argument(help="Name of the queue.", autocompletion=queue_names)]


@app.command("""hwqueue queue create renders --policy '{"claim_timeout": 300}'""")
def create(
    ctx: typer.Context,
    name: Annotated[str | None, Argument(help="Name of the queue; or give --app.")] = None,
    policy: Annotated[str | None, Option(help=f"Policy as JSON, or a file that holds it; {_KEYS}.")] = None,
    app_name: AppName = None,
) -> None:
    """Make a queue, or with --app those that the app's tasks name; what exists is left as it is.

    Refused if a queue differs in a key of --policy.
    """
    has_app = app_name is not None or (name is None and options_of(ctx).host is not None)
    if (name is None) != has_app:
        raise ConfigError("give the name of a queue, or --app module:name, and not both")
    content = json_object(policy, "--policy") if policy else {}
    if name is None:
        wanted = sorted({task.defaults.queue for task in app_of(ctx, app_name).tasks.values()})
    else:
        wanted = [name]
    with open_client(ctx) as client:
        for each in wanted:
            client.create_queue(each, policy=content)
        found = [_find(client, each) for each in wanted]
    if name is None:
        show_items(ctx, found, _row, empty="the app has no tasks")
    else:
        show_item(ctx, found[0], _facts)


@app.command("hwqueue queue list --json")
def list_(ctx: typer.Context) -> None:
    """List the queues with their counts."""
    found = ask(ctx, Client.list_queues)
    show_items(ctx, found, _row, empty="no queues; make one: hwqueue queue create NAME")


@app.command("hwqueue queue depth renders --json")
def depth(
    ctx: typer.Context,
    name: Annotated[str | None, Argument(help="Only this queue.", autocompletion=queue_names)] = None,
) -> None:
    """Show what waits and runs, since when the oldest waits, and claims that nobody extends."""
    found = ask(ctx, Client.queue_depth, queue=name)
    show_items(ctx, found, _depth_row, empty="no queues; make one: hwqueue queue create NAME")


@app.command("hwqueue queue show renders")
def show(ctx: typer.Context, name: Name) -> None:
    """Show one queue and its policy; with --json spans are in seconds."""
    with open_client(ctx) as client:
        found = _find(client, name)
    show_item(ctx, found, _facts)


@app.command("hwqueue queue pause renders")
def pause(ctx: typer.Context, name: Name) -> None:
    """Hand out nothing more from a queue; what runs goes on."""
    ask(ctx, Client.pause_queue, name)
    say(ctx, f"{name} is paused; go on with: hwqueue queue resume {name}")


@app.command("hwqueue queue resume renders")
def resume(ctx: typer.Context, name: Name) -> None:
    """Let a paused queue go on."""
    ask(ctx, Client.resume_queue, name)
    say(ctx, f"{name} goes on")


@app.command("hwqueue queue purge renders")
def purge(ctx: typer.Context, name: Name, *, care: bulk.Care) -> None:
    """Empty a queue: cancel what waits, then delete all that has ended. What runs goes on."""
    states = [*bulk.WAITING, *bulk.ENDED]
    chosen = bulk.Selection(queue=name, wanted={}, states=states)
    with open_client(ctx) as client:

        def change(_queue: str, *, on_progress: Callable[[BulkPage], object]) -> BulkResult:
            skipped = [
                lease
                for state in bulk.WAITING
                for lease in client.cancel_leases(name, state=state, reason="purged").skipped
            ]
            deleted = client.delete_leases(name, on_progress=on_progress)
            return BulkResult(changed=deleted.changed, skipped=(*skipped, *deleted.skipped))

        bulk.change_all(ctx, client, chosen, change, care, verb="delete", done="deleted")


@app.command("hwqueue queue drop renders --force")
def drop(
    ctx: typer.Context,
    name: Name,
    force: Annotated[bool, Option("--force", help="Drop its leases, running ones included.")] = False,
) -> None:
    """Drop a queue; one that still holds leases only with --force."""
    ask(ctx, Client.drop_queue, name, force=force)
    say(ctx, f"{name} is gone")


@app.command("""hwqueue queue policy renders '{"max_attempts": 3, "ageing_step": "1 h"}'""")
def policy(
    ctx: typer.Context,
    name: Name,
    changes: Annotated[
        str | None, Argument(help=f"What to change, as JSON or a file; leave out to look; {_KEYS}.")
    ] = None,
) -> None:
    """Show a queue's policy, or change parts of it."""
    content = json_object(changes, "CHANGES") if changes else None
    with open_client(ctx) as client:
        if content is not None:
            client.set_queue_policy(name, content)
        found = _find(client, name)
    if options_of(ctx).json:
        show_one(ctx, found.policy)
    else:
        show_one(ctx, _policy_facts(found.policy))


_row = row_of(Queue, "queue paused pending scheduled claimed")


def _facts(queue: Queue) -> dict[str, object]:
    """A queue's counts, then its policy."""
    return _row(queue) | _policy_facts(queue.policy)


def _policy_facts(policy: Mapping[str, Any]) -> dict[str, object]:
    """A policy for a person: its spans in units, `retry` and `tuning` spread out."""
    facts: dict[str, Any] = {}
    for key, value in sorted(policy.items()):
        if isinstance(value, Mapping):
            facts |= {f"{key}.{part}": each for part, each in value.items()}
        else:
            facts[key] = value
    return {
        name: exact_duration(timedelta(seconds=value)) if name.rpartition(".")[2] in POLICY_SPANS else value
        for name, value in facts.items()
    }


def _depth_row(depth: QueueDepth) -> dict[str, object]:
    return fields_of(depth) | {"oldest_at": age(depth.oldest_at, datetime.now(UTC))}


def _find(client: Client, name: str) -> Queue:
    for queue in client.list_queues():
        if queue.queue == name:
            return queue
    raise QueueUnknown(f"no queue is named {name!r}", detail={"queue": name})
