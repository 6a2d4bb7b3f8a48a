"""hwqueue everywhere: a task on every node; spawn, look at and stop them."""

from typing import Annotated, Literal

import typer
from typer import Argument, Option

from hwqueue.cli import spawning
from hwqueue.cli.completion import queue_names
from hwqueue.cli.connect import ask, open_client
from hwqueue.cli.groups import Commands, Only
from hwqueue.cli.inputs import identifier, json_value, moment
from hwqueue.cli.options import options_of
from hwqueue.cli.output import plain_text, say, show_item, show_items, show_one, show_rows
from hwqueue.cli.tables import row_of
from hwqueue.client import Client
from hwqueue.meanings import meaning
from hwqueue.text import plural
from hwqueue.types import EverywhereLease, EverywhereState, EverywhereSummary, EverywhereTask

app = Commands("A task on every node, as a DaemonSet or a system job: spawn, watch, stop.")

EverywhereId = Annotated[str, Argument(help="Id of the everywhere task.")]

_EXAMPLE_ID = "01890a5d-ac96-774b-bcce-b302099a8057"


@app.command("hwqueue everywhere spawn ops agent --node-label gpu=true")
def spawn(
    ctx: typer.Context,
    queue: Annotated[str, Argument(help="Queue to put it in.", autocompletion=queue_names)],
    task: Annotated[str, Argument(help="Task that each node runs.")],
    *,
    params: Annotated[str, Option(help="What the task gets: JSON or a file.")] = "{}",
    mode: Annotated[
        Literal["once", "always"] | None, Option(help=meaning("everywhere.mode"), show_default="always")
    ] = None,
    on_unmatched: Annotated[
        Literal["keep", "stop"] | None, Option(help=meaning("everywhere.on_unmatched"), show_default="keep")
    ] = None,
    on_cordoned: Annotated[bool, Option("--on-cordoned", help=meaning("everywhere.on_cordoned"))] = False,
    everywhere_id: Annotated[str | None, Option("--id", help=meaning("everywhere.everywhere_id"))] = None,
    flags: Annotated[
        spawning.Flags, Only("placement", "node_label", "priority", "label", "max_attempts", "tenant")
    ],
) -> None:
    """Spawn a task on every node that suits it, also on nodes that register later."""
    with open_client(ctx) as client:
        spawned = client.spawn_everywhere(
            queue,
            task,
            json_value(params, "--params"),
            everywhere_id=None if everywhere_id is None else identifier(everywhere_id, "--id"),
            mode=mode,
            on_unmatched=on_unmatched,
            on_cordoned=on_cordoned or None,
            **flags.asked_of_nodes(),
            **flags.options(),
        )
        warnings = spawning.warn(ctx, client, spawned.everywhere_id)
    if options_of(ctx).json:
        facts = ("everywhere_id", "created", "nodes")
        show_one(ctx, {name: getattr(spawned, name) for name in facts} | {"warnings": warnings})
        return
    typer.echo(spawned.everywhere_id)
    found = "" if spawned.created else "; it was there already"
    say(
        ctx,
        f"nodes that suit it now: {spawned.nodes}{found}; how far it is: "
        f"hwqueue everywhere show {spawned.everywhere_id}",
    )


@app.command("hwqueue everywhere list --state active")
def list_(
    ctx: typer.Context,
    *,
    state: Annotated[EverywhereState | None, Option(help="Only these.")] = None,
    limit: Annotated[int, Option(min=1, max=1000, help="At most this many.")] = 50,
    before: Annotated[str | None, Option(help="Time of the last of a page, to get the next one.")] = None,
) -> None:
    """List everywhere tasks, newest first."""
    found = ask(ctx, Client.list_everywhere, state=state, limit=limit, before=moment(before, "--before"))
    show_items(ctx, found, _row, empty="no everywhere tasks")


@app.command(f"hwqueue everywhere show {_EXAMPLE_ID}")
def show(
    ctx: typer.Context,
    everywhere_id: EverywhereId,
    *,
    limit: Annotated[int, Option(min=0, max=10000, help="Nodes, at most.")] = 100,
    after: Annotated[str | None, Option(help="Id of the last node of a page, to get the next one.")] = None,
) -> None:
    """Show an everywhere task and its lease on each node."""
    wanted = identifier(everywhere_id, "EVERYWHERE_ID")
    last = None if after is None else identifier(after, "--after")
    found = ask(ctx, Client.get_everywhere, wanted, limit=limit, after=last)
    show_item(ctx, found, _facts)
    if not options_of(ctx).json:
        typer.echo("")
        show_rows(ctx, [_lease_row(each) for each in found.leases])


@app.command(f"hwqueue everywhere stop {_EXAMPLE_ID} --running stop")
def stop(
    ctx: typer.Context,
    everywhere_id: EverywhereId,
    *,
    running: Annotated[
        Literal["keep", "stop"], Option(help="Leases that run go on, or are asked to stop.")
    ] = "keep",
    yes: Annotated[bool, Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Stop an everywhere task: nodes get no lease of it any more, and what waits is cancelled."""
    wanted = identifier(everywhere_id, "EVERYWHERE_ID")
    with open_client(ctx) as client:
        if not yes:
            found = client.get_everywhere(wanted, limit=0)
            what = f"task {found.task_name}, which runs on {plural(found.running, 'node')}"
            typer.confirm(f"stop {plain_text(what)}?", abort=True, err=True)
        state = client.stop_everywhere(wanted, running=running)
    show_one(ctx, {"everywhere_id": wanted, "state": state})


_COUNTS = "nodes waiting reserved running"
_row = row_of(EverywhereSummary, f"everywhere_id queue task=task_name mode state {_COUNTS} created_at")
_facts = row_of(
    EverywhereTask,
    f"everywhere_id queue task=task_name tenant mode on_unmatched on_cordoned state {_COUNTS} completed "
    "failed cancelled created_at stopped_at finished_at",
    tenant=lambda found: found.tenant or None,
    on_cordoned=lambda found: found.on_cordoned or None,
)
_lease_row = row_of(
    EverywhereLease,
    "node lease_id state reason starts failures due_at",
    node=lambda lease: lease.node or lease.node_id,
)
