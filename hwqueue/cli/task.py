"""hwqueue task: the options that the leases of a task have by default."""

import json
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from typer import Argument, Option

from hwqueue.cli.completion import task_names
from hwqueue.cli.connect import ask, open_client
from hwqueue.cli.groups import Commands
from hwqueue.cli.inputs import json_object
from hwqueue.cli.output import ExitCode, say, show_item, show_items, show_one, show_rows
from hwqueue.cli.tables import row_of
from hwqueue.cli.worker import AppName, app_of
from hwqueue.client import Client
from hwqueue.errors import HwqueueError
from hwqueue.handler.task import TASK_OPTIONS
from hwqueue.types import KnownTask

app = Commands("Options that the leases of a task have by default.")

Name = Annotated[str, Argument(help="Name of the task.", autocompletion=task_names)]
Defaults = Mapping[str, Any]


@app.command("hwqueue task list --json")
def list_(ctx: typer.Context) -> None:
    """List the tasks that have been set."""
    found = ask(ctx, Client.list_tasks)
    show_items(ctx, found, _facts, empty="no task is set: hwqueue task set NAME DEFAULTS, or task sync")


@app.command("hwqueue task show train")
def show(ctx: typer.Context, name: Name) -> None:
    """Show the defaults of a task; spans are in seconds."""
    with open_client(ctx) as client:
        for each in client.list_tasks():
            if each.task == name:
                return show_item(ctx, each, _facts)
    raise _not_set(ctx, name)


@app.command("""hwqueue task set train '{"placement": {"resources": {"gpu": 1}}}'""")
def set_(
    ctx: typer.Context,
    name: Name,
    defaults: Annotated[
        str, Argument(help=f"All of them: JSON, a file, or - for stdin; keys {', '.join(TASK_OPTIONS)}.")
    ],
) -> None:
    """Set the defaults of a task for later spawns; options of a spawn win over them."""
    content = json_object(defaults, "DEFAULTS")
    with open_client(ctx) as client:
        show_one(ctx, {"task": name, "defaults": client.set_task(name, content)})


@app.command("hwqueue task drop train")
def drop(ctx: typer.Context, name: Name) -> None:
    """Drop the defaults of a task; its leases stay."""
    with open_client(ctx) as client:
        if not client.drop_task(name):
            raise _not_set(ctx, name)
    say(ctx, f"{name} has no defaults any more")


@app.command("hwqueue task sync --app tasks:app --dry-run")
def sync(
    ctx: typer.Context,
    *,
    app_name: AppName = None,
    prune: Annotated[
        bool, Option("--prune", help="Drop the defaults of tasks that the app does not have.")
    ] = False,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Change nothing; exit with 1 if there is something to do.")
    ] = False,
) -> None:
    """Make the defaults of an app's tasks those of the database, and print what changes.

    A task of the app without defaults has none in the database either.
    """
    tasks = app_of(ctx, app_name).tasks
    # as the database returns them: lists for tuples
    wanted = json.loads(json.dumps({name: task.defaults.as_json() for name, task in tasks.items()}))
    with open_client(ctx) as client:
        now = {each.task: each.defaults for each in client.list_tasks()}
        changed = {name: then for name, then in wanted.items() if then != now.get(name, {})}
        if prune:
            changed |= {name: {} for name in now if name not in wanted}
        if not dry_run:
            for name, then in changed.items():
                _write(client, name, then)
    rows = [row for name, then in changed.items() for row in _changes(name, now.get(name, {}), then)]
    show_rows(ctx, rows, empty="nothing to change")
    if dry_run and changed:
        raise typer.Exit(ExitCode.FAILED)


def _write(client: Client, name: str, defaults: Defaults) -> None:
    """Set or drop one task. Raises: as set_task, naming the task."""
    try:
        if defaults:
            client.sync_tasks({name: defaults}, force=True)
        else:
            client.drop_task(name)
    except HwqueueError as error:
        said = str(error).replace(f"p_defaults.{name}.", "defaults.", 1)
        raise type(error)(f"task {name}: {said}", detail=error.detail, hint=error.hint) from error


def _changes(name: str, now: Defaults, then: Defaults) -> list[dict[str, Any]]:
    """What changes of a task, an option a row; None: not there."""
    options = [each for each in sorted(now.keys() | then.keys()) if now.get(each) != then.get(each)]
    return [
        {"task": name, "option": each, "now": now.get(each), "then": then.get(each)} for each in options
    ] or [{"task": name, "option": None, "now": None, "then": None}]


_facts = row_of(KnownTask, "task served defaults set_at set_by")


def _not_set(ctx: typer.Context, name: str) -> typer.Exit:
    say(ctx, f"task {name} is not set; list those that are: hwqueue task list")
    return typer.Exit(ExitCode.NOT_FOUND)
