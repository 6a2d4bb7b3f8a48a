"""hwqueue lease: spawn work, look at it, cancel it, run it again."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Annotated
from uuid import UUID

import typer
from rich.console import Console
from typer import Argument, Option

from hwqueue.cli import bulk, spawning
from hwqueue.cli.completion import queue_names
from hwqueue.cli.connect import ask, open_client
from hwqueue.cli.explanation import show_explanation
from hwqueue.cli.groups import Commands, Only
from hwqueue.cli.inputs import identifier, json_value, names_of_nodes, span
from hwqueue.cli.lease_logs import Lines, mention, printer
from hwqueue.cli.lease_logs import follow as follow_lines
from hwqueue.cli.lease_view import error_line, show_lease, wait_with_bar
from hwqueue.cli.options import options_of
from hwqueue.cli.output import ExitCode, fields_of, say, say_more, show_item, show_items, show_one, show_rows
from hwqueue.cli.tables import Row, row_of
from hwqueue.client import Client
from hwqueue.errors import ConfigError, LeaseError
from hwqueue.meanings import meaning
from hwqueue.text import duration
from hwqueue.types import (
    LeaseEvent,
    LeaseFilter,
    LeaseState,
    LeaseSummary,
    Preemption,
    SignalSent,
    SpawnResult,
    Victim,
)

app = Commands("Spawn work, look at it, cancel it, run it again.")

LeaseId = Annotated[str, Argument(help="Id of the lease.")]
MaybeIds = Annotated[list[str] | None, Argument(help="Ids of leases.")]


@app.command(
    "hwqueue lease spawn renders draw --params '{\"frame\": 7}' "
    '--node-label gpu=true --placement \'{"resources": {"gpu": 1}}\''
)
def spawn(
    ctx: typer.Context,
    queue: Annotated[str, Argument(help="Queue to put it in.", autocompletion=queue_names)],
    task: Annotated[str, Argument(help="Task that runs it.")],
    *,
    params: Annotated[str, Option(help="What the task gets: JSON or a file.")] = "{}",
    flags: spawning.Flags,
    replacing: spawning.Replacing,
) -> None:
    """Spawn a lease and print its id and state."""
    options = flags.spawn_options()
    options["replaces"] = replacing.option()
    with open_client(ctx) as client:
        given = json_value(params, "--params")
        spawned = spawning.spawn_lease(client, queue, task, given, options)
        warnings = spawning.warn(ctx, client, spawned.lease_id, spawned.warnings)
    all_of_it = fields_of(spawned) | {"warnings": warnings}
    facts = row_of(SpawnResult, "lease_id created state")
    show_item(ctx, spawned, facts, fields=lambda _spawned: all_of_it)


@app.command("hwqueue lease list --queue renders --state failed")
def list_(
    ctx: typer.Context,
    *,
    queue: bulk.MaybeQueue = None,
    wanted: Annotated[bulk.Filter, Only("state", "task", "label", "error")],
    key: Annotated[str | None, Option(help=meaning("leases.idempotency_key"))] = None,
    tenant: Annotated[str | None, Option(help=meaning("leases.tenant"))] = None,
    limit: Annotated[int, Option(min=1, max=1000, help="At most this many.")] = 50,
    before: Annotated[
        str | None, Option(help="Older than this lease: the last id of the page before.")
    ] = None,
) -> None:
    """List leases, newest first."""
    older = identifier(before, "--before") if before else None
    chosen = wanted.as_filter() | LeaseFilter(idempotency_key=key, tenant=tenant)
    with open_client(ctx) as client:
        found = client.list_leases(queue=queue, limit=limit, before=older, **chosen)
        names = names_of_nodes(client) if found else {}
    headings = "lease_id queue task=task_name state priority attempt created_at node"
    if any(lease.error is not None for lease in found):
        headings += " error"
    row = row_of(
        LeaseSummary,
        headings,
        attempt=lambda lease: f"{lease.attempt}/{lease.max_attempts}",
        node=lambda lease: names.get(lease.node_id) if lease.node_id else None,
        error=lambda lease: None if lease.error is None else error_line(lease.error),
    )
    show_items(ctx, found, row, empty="no such leases")
    say_more(ctx, found, limit, "--before {0.lease_id}")


@app.command("hwqueue lease show 01890a5d-ac96-774b-bcce-b302099a8057 --json")
def show(ctx: typer.Context, lease_id: LeaseId) -> None:
    """Show all that is known about a lease, its failed attempts included."""
    with open_client(ctx) as client:
        lease = client.get_lease(identifier(lease_id, "LEASE_ID"))
        saved = client.lease_checkpoints(lease.lease_id)
        names = names_of_nodes(client) if lease.attempts else {}
        show_lease(ctx, lease, names, saved)
        mention(ctx, client, lease.lease_id)


@app.command("hwqueue lease signal 01890a5d-ac96-774b-bcce-b302099a8057 packed --payload '{\"parcel\": 7}'")
def signal(
    ctx: typer.Context,
    lease_id: LeaseId,
    name: Annotated[str, Argument(help="What the handler waits for.")],
    *,
    payload: Annotated[str, Option(help="JSON; what wait_for returns.")] = "null",
    key: Annotated[str | None, Option(help="The same name and key reach the lease once.")] = None,
) -> None:
    """Send a lease a signal; one that is suspended until it comes is claimable at once."""
    sent = json_value(payload, "--payload")
    answer = ask(ctx, Client.signal_lease, identifier(lease_id, "LEASE_ID"), name, sent, key=key)
    show_item(ctx, answer, row_of(SignalSent, "created state"))


@app.command("hwqueue lease logs 01890a5d-ac96-774b-bcce-b302099a8057 --follow")
def logs(
    ctx: typer.Context,
    lease_id: LeaseId,
    *,
    follow: Annotated[
        bool, Option("--follow", "-f", help="Show what comes until the lease has ended.")
    ] = False,
    attempt: Annotated[int | None, Option(min=1, help="Only of this attempt.")] = None,
    tail: Annotated[int | None, Option("--tail", "-n", min=1, max=1000, help="The last ones.")] = None,
) -> None:
    """Show what the handler of a lease logged, oldest first; with --json an object for each line.

    The last 1000 lines of each attempt are kept. With --follow, Ctrl-C ends this command alone.
    """
    wanted = identifier(lease_id, "LEASE_ID")
    show = printer(ctx)
    with open_client(ctx) as client:
        lines = Lines(client=client, lease_id=wanted, attempt=attempt)
        for line in lines.new() if tail is None else lines.last(tail):
            show(line)
        if follow:
            with suppress(KeyboardInterrupt):
                follow_lines(ctx, lines, show)
        if lines.after is None:
            say(ctx, "no log lines")


@app.command("hwqueue lease wait 01890a5d-ac96-774b-bcce-b302099a8057 --timeout 10m")
def wait(
    ctx: typer.Context,
    lease_id: LeaseId,
    *,
    timeout: Annotated[str | None, Option(help="How long at most, such as 10m.")] = None,
) -> None:
    """Wait until a lease has ended and show how; exits with 0 if it has completed.

    With 1 if it has failed, with 6 if it was cancelled, with 7 if it has not ended in time.
    """
    wanted, at_most = identifier(lease_id, "LEASE_ID"), span(timeout, "--timeout")
    with open_client(ctx) as client:
        screen = Console(stderr=True)
        if screen.is_terminal and not options_of(ctx).json:
            lease = wait_with_bar(client, wanted, at_most, screen)
        else:
            lease = client.wait(wanted, timeout=at_most)
        mention(ctx, client, wanted)
    names = ("lease_id", "state", "attempt", "finished_at", "result", "error")
    show_one(ctx, {name: getattr(lease, name) for name in names})
    if code := ExitCode.of(lease.state):
        raise typer.Exit(code)


@app.command("hwqueue lease explain 01890a5d-ac96-774b-bcce-b302099a8057")
def explain(
    ctx: typer.Context,
    lease_id: LeaseId,
    *,
    nodes: Annotated[int, Option(min=0, max=20, help="Show this many of the nearest nodes.")] = 5,
) -> None:
    """Say why a lease is where it is: of a pending one, what keeps which nodes from it."""
    explanation = ask(ctx, Client.explain_lease, identifier(lease_id, "LEASE_ID"))
    show_explanation(ctx, explanation, nodes)


_NO_ROOM = {
    "not_pending": "the lease is not pending, so it needs no room",
    "fits": "a node has room for it now, so none has to stop",
    "no_victims": "no node would have room if leases of later tiers stopped; hwqueue lease explain says why",
}


def _room(found: Preemption) -> Row:
    if not found.node:
        return {"room": _NO_ROOM.get(found.reason or "", found.reason)}
    row = row_of(Victim, "lease_id queue task tenant tier ran", ran=lambda victim: duration(victim.ran))
    return {"room": f"on {found.node}, once these have stopped", "leases": list(map(row, found.victims))}


@app.command("hwqueue lease preemption 01890a5d-ac96-774b-bcce-b302099a8057")
def preemption(ctx: typer.Context, lease_id: LeaseId) -> None:
    """Show where a pending lease would get room if leases of later tiers stopped; none is asked."""
    show_item(ctx, ask(ctx, Client.preview_preemption, identifier(lease_id, "LEASE_ID")), _room)


@app.command("hwqueue lease history 01890a5d-ac96-774b-bcce-b302099a8057")
def history(ctx: typer.Context, lease_id: LeaseId) -> None:
    """Show the life line of a lease: spawned, waited, claimed where, how each attempt ended."""
    found = ask(ctx, Client.lease_history, identifier(lease_id, "LEASE_ID"))
    row = row_of(
        LeaseEvent, "at event lasted attempt node=node_name detail", lasted=lambda step: duration(step.lasted)
    )
    show_items(ctx, found, row)


@app.command("hwqueue lease cancel --queue renders --label film=7 --dry-run")
def cancel(
    ctx: typer.Context,
    lease_ids: MaybeIds = None,
    *,
    reason: Annotated[str | None, Option(help="Kept with the lease.")] = None,
    queue: bulk.MaybeQueue = None,
    wanted: bulk.FilterOfOpen,
    care: bulk.Care,
) -> None:
    """Cancel leases; of a running one its worker is asked to stop."""
    chosen = bulk.select(queue, wanted, bulk.OPEN, lease_ids)
    with open_client(ctx) as client:
        if chosen is None:
            _each(ctx, lease_ids, partial(client.cancel_lease, reason=reason))
            return
        change = partial(client.cancel_leases, reason=reason)
        bulk.change_all(ctx, client, chosen, change, care, verb="cancel", done="cancelled")


@app.command("hwqueue lease requeue --queue renders --error TimeoutError --older 2h")
def requeue(
    ctx: typer.Context,
    lease_ids: MaybeIds = None,
    *,
    failed: Annotated[
        str | None,
        Option(help="The failed leases of this queue, without asking.", autocompletion=queue_names),
    ] = None,
    queue: bulk.MaybeQueue = None,
    wanted: bulk.FilterOfFailed,
    limit: Annotated[int | None, Option(min=1, help="With --failed: at most this many.")] = None,
    care: bulk.Care,
) -> None:
    """Run failed or cancelled leases again, with their attempts counted afresh."""
    if failed:
        if lease_ids or queue or any(vars(replace(wanted, state=None, task=None)).values()):
            raise ConfigError("--failed goes with --task and --limit; use --queue with other filters")
        count = ask(ctx, Client.requeue_failed, failed, task=wanted.task, limit=limit)
        show_one(ctx, {"requeued": count})
        return
    if limit:
        raise ConfigError("--limit goes with --failed QUEUE")
    chosen = bulk.select(queue, wanted if queue else replace(wanted, state=None), bulk.DEAD, lease_ids)
    with open_client(ctx) as client:
        if chosen is None:
            _each(ctx, lease_ids, client.requeue_lease)
            return
        bulk.change_all(ctx, client, chosen, client.requeue_leases, care, verb="requeue", done="requeued")


@app.command("hwqueue lease delete --queue renders --state cancelled --older 1d")
def delete(ctx: typer.Context, queue: bulk.Queue, *, wanted: bulk.Filter, care: bulk.Care) -> None:
    """Delete finished leases with their results, before their retention is over."""
    chosen = bulk.select(queue, wanted, bulk.ENDED)
    assert chosen is not None
    with open_client(ctx) as client:
        bulk.change_all(ctx, client, chosen, client.delete_leases, care, verb="delete", done="deleted")


@app.command("hwqueue lease priority 10 --queue renders --label film=7")
def priority(
    ctx: typer.Context,
    value: Annotated[int, Argument(help=meaning("spawn.priority"))],
    queue: bulk.Queue,
    *,
    wanted: bulk.FilterOfOpen,
    care: bulk.Care,
) -> None:
    """Change the priority of waiting leases."""
    chosen = bulk.select(queue, wanted, bulk.WAITING)
    assert chosen is not None
    with open_client(ctx) as client:
        change = partial(client.update_leases, changes={"priority": value})
        bulk.change_all(ctx, client, chosen, change, care, verb="change the priority of", done="changed")


@app.command("hwqueue lease move gpu-b --queue gpu-a --label film=7")
def move(
    ctx: typer.Context,
    to: Annotated[str, Argument(metavar="QUEUE", help="Where to.", autocompletion=queue_names)],
    lease_ids: MaybeIds = None,
    *,
    queue: bulk.MaybeQueue = None,
    wanted: bulk.FilterOfOpen,
    care: bulk.Care,
) -> None:
    """Move waiting leases to another queue; a lease that cannot be there stays."""
    chosen = bulk.select(queue, wanted, bulk.WAITING, lease_ids)
    with open_client(ctx) as client:
        if chosen is None:
            _each(ctx, lease_ids, partial(client.update_lease, queue=to))
            return
        change = partial(client.update_leases, changes={"queue": to})
        bulk.change_all(ctx, client, chosen, change, care, verb=f"move to {to}", done="moved")


def _each(ctx: typer.Context, lease_ids: list[str] | None, call: Callable[[UUID], object]) -> None:
    """Call it for each id and print what became of it: one that is refused holds back no others.

    A refusal of the only one is raised.
    """
    ids = [identifier(text, "LEASE_IDS") for text in lease_ids or []]
    rows: list[dict[str, object]] = []
    for lease_id in ids:
        try:
            state, refused = call(lease_id), None
        except LeaseError as error:
            if len(ids) == 1:
                raise
            state, refused = None, str(error)
        if state == LeaseState.CLAIMED and not options_of(ctx).json:
            state = "asked to stop"
        row = {"lease_id": lease_id, "state": state}
        rows.append(row if len(ids) == 1 else row | {"error": refused})
    show_rows(ctx, rows)
    if any(row.get("error") for row in rows):
        raise typer.Exit(ExitCode.FAILED)
