"""hwqueue everywhere: a task on every node; spawn, look at and stop them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from hwqueue.cli import spawning
from hwqueue.cli.completion import queue_names
from hwqueue.cli.connect import open_client
from hwqueue.cli.inputs import identifier, json_object, json_value, labels, moment, pairs
from hwqueue.cli.options import options_of
from hwqueue.cli.output import plain_text, say, show_item, show_items, show_one, show_rows
from hwqueue.text import plural
from hwqueue.types import EverywhereLease, EverywhereState, EverywhereSummary, EverywhereTask

app = typer.Typer(
    no_args_is_help=True,
    help="A task on every node, as a DaemonSet or a system job: spawn, watch, stop.",
)

EverywhereId = Annotated[str, typer.Argument(help="Id of the everywhere task.")]

_EXAMPLE_ID = "01890a5d-ac96-774b-bcce-b302099a8057"


@app.command(epilog="Example: hwqueue everywhere spawn ops agent --node-label gpu=true")
def spawn(
    ctx: typer.Context,
    queue: Annotated[str, typer.Argument(help="Queue to put it in.", autocompletion=queue_names)],
    task: Annotated[str, typer.Argument(help="Task that each node runs.")],
    *,
    params: Annotated[str, typer.Option(help="What the task gets: JSON or a file.")] = "{}",
    mode: Annotated[
        Literal["once", "always"] | None,
        typer.Option(help="One lease a node, or another one whenever it has ended.", show_default="always"),
    ] = None,
    on_unmatched: Annotated[
        Literal["keep", "stop"] | None,
        typer.Option(
            help="What a running lease does whose node does not suit any more.",
            show_default="keep",
        ),
    ] = None,
    on_cordoned: Annotated[bool, typer.Option("--on-cordoned", help="On cordoned nodes, too.")] = False,
    everywhere_id: Annotated[
        str | None, typer.Option("--id", help="An id of your own: the same id spawns only once.")
    ] = None,
    placement: spawning.Placement = None,
    node_label: spawning.NodeLabel = None,
    priority: spawning.Priority = None,
    label: spawning.Label = None,
    max_attempts: spawning.MaxAttempts = None,
    tenant: spawning.Tenant = None,
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
            placement=json_object(placement, "--placement") if placement else None,
            affinity_tags=labels(node_label, "--node-label") or None,
            priority=priority,
            labels=pairs(label, "--label") if label else None,
            max_attempts=max_attempts,
            tenant=tenant,
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


@app.command("list", epilog="Example: hwqueue everywhere list --state active")
def list_(
    ctx: typer.Context,
    *,
    state: Annotated[EverywhereState | None, typer.Option(help="Only these.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most this many.")] = 50,
    before: Annotated[
        str | None, typer.Option(help="Time of the last of a page, to get the next one.")
    ] = None,
) -> None:
    """List everywhere tasks, newest first."""
    with open_client(ctx) as client:
        found = client.list_everywhere(state=state, limit=limit, before=moment(before, "--before"))
    show_items(ctx, found, _row, empty="no everywhere tasks")


@app.command(epilog=f"Example: hwqueue everywhere show {_EXAMPLE_ID}")
def show(
    ctx: typer.Context,
    everywhere_id: EverywhereId,
    *,
    limit: Annotated[int, typer.Option(min=0, max=10000, help="Nodes, at most.")] = 100,
    after: Annotated[
        str | None, typer.Option(help="Id of the last node of a page, to get the next one.")
    ] = None,
) -> None:
    """Show an everywhere task and its lease on each node."""
    wanted = identifier(everywhere_id, "EVERYWHERE_ID")
    with open_client(ctx) as client:
        found = client.get_everywhere(
            wanted, limit=limit, after=None if after is None else identifier(after, "--after")
        )
    show_item(ctx, found, _facts)
    if not options_of(ctx).json:
        typer.echo("")
        show_rows(ctx, [_lease_row(each) for each in found.leases])


@app.command(epilog=f"Example: hwqueue everywhere stop {_EXAMPLE_ID} --running stop")
def stop(
    ctx: typer.Context,
    everywhere_id: EverywhereId,
    *,
    running: Annotated[
        Literal["keep", "stop"], typer.Option(help="Leases that run go on, or are asked to stop.")
    ] = "keep",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
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


def _row(found: EverywhereSummary) -> dict[str, Any]:
    return {
        "everywhere_id": found.everywhere_id,
        "queue": found.queue,
        "task": found.task_name,
        "mode": found.mode,
        "state": found.state,
        "nodes": found.nodes,
        "waiting": found.waiting,
        "reserved": found.reserved,
        "running": found.running,
        "created_at": found.created_at,
    }


def _facts(found: EverywhereTask) -> dict[str, Any]:
    return {
        "everywhere_id": found.everywhere_id,
        "queue": found.queue,
        "task": found.task_name,
        "tenant": found.tenant or None,
        "mode": found.mode,
        "on_unmatched": found.on_unmatched,
        "on_cordoned": found.on_cordoned or None,
        "state": found.state,
        "nodes": found.nodes,
        "waiting": found.waiting,
        "reserved": found.reserved,
        "running": found.running,
        "completed": found.completed,
        "failed": found.failed,
        "cancelled": found.cancelled,
        "created_at": found.created_at,
        "stopped_at": found.stopped_at,
        "finished_at": found.finished_at,
    }


def _lease_row(lease: EverywhereLease) -> dict[str, Any]:
    return {
        "node": lease.node or lease.node_id,
        "lease_id": lease.lease_id,
        "state": lease.state,
        "reason": lease.reason,
        "starts": lease.starts,
        "failures": lease.failures,
        "due_at": lease.due_at,
    }
