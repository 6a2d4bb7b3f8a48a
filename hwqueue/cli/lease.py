"""hwqueue lease: spawn work, look at it, cancel it, run it again."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Annotated
from uuid import UUID

import typer
from rich.console import Console

from hwqueue.cli import bulk, spawning
from hwqueue.cli.completion import queue_names
from hwqueue.cli.connect import open_client
from hwqueue.cli.explanation import show_explanation
from hwqueue.cli.failures import error_line, show_lease
from hwqueue.cli.inputs import (
    identifier,
    json_value,
    pairs,
    span,
)
from hwqueue.cli.lease_bar import wait_with_bar
from hwqueue.cli.lease_logs import Lines, mention, printer
from hwqueue.cli.lease_logs import follow as follow_lines
from hwqueue.cli.options import options_of
from hwqueue.cli.output import ExitCode, fields_of, say, show_item, show_items, show_one, show_rows
from hwqueue.errors import ConfigError, LeaseError
from hwqueue.text import duration
from hwqueue.types import (
    LeaseChanges,
    LeaseEvent,
    LeaseState,
    LeaseSummary,
    SpawnResult,
)

app = typer.Typer(no_args_is_help=True, help="Spawn work, look at it, cancel it, run it again.")

_EXIT_CODES = {
    LeaseState.COMPLETED: ExitCode.OK,
    LeaseState.FAILED: ExitCode.FAILED,
    LeaseState.CANCELLED: ExitCode.CANCELLED,
}

MaybeIds = Annotated[list[str] | None, typer.Argument(help="Ids of leases.")]


@app.command(
    epilog="Example: hwqueue lease spawn renders draw --params '{\"frame\": 7}' "
    '--node-label gpu=true --placement \'{"resources": {"gpu": 1}}\''
)
def spawn(
    ctx: typer.Context,
    queue: Annotated[str, typer.Argument(help="Queue to put it in.", autocompletion=queue_names)],
    task: Annotated[str, typer.Argument(help="Task that runs it.")],
    *,
    params: Annotated[str, typer.Option(help="What the task gets: JSON or a file.")] = "{}",
    placement: spawning.Placement = None,
    node_label: spawning.NodeLabel = None,
    priority: spawning.Priority = None,
    label: spawning.Label = None,
    delay: spawning.Delay = None,
    deadline: spawning.Deadline = None,
    max_run: spawning.MaxRun = None,
    patience: spawning.Patience = None,
    max_attempts: spawning.MaxAttempts = None,
    key: spawning.Key = None,
    unique: spawning.UniqueKey = None,
    unique_for: spawning.UniqueFor = None,
    on_conflict: spawning.ConflictChoice = "keep",
    tenant: spawning.Tenant = None,
    one_of: spawning.OneOf = None,
    replaces: spawning.Replaced = None,
    then: spawning.Then = "cancel",
    overlap: spawning.Overlap = False,
) -> None:
    """Spawn a lease and print its id and state."""
    options = spawning.spawn_options(
        placement=placement,
        node_label=node_label,
        priority=priority,
        label=label,
        delay=delay,
        deadline=deadline,
        max_run=max_run,
        patience=patience,
        max_attempts=max_attempts,
        key=key,
        unique=unique,
        unique_for=unique_for,
        on_conflict=on_conflict,
        tenant=tenant,
        one_of=one_of,
    )
    options["replaces"] = spawning.replaces(replaces, then, overlap)
    with open_client(ctx) as client:
        given = json_value(params, "--params")
        spawned = spawning.spawn_lease(client, queue, task, given, options)
        warnings = spawning.warn(ctx, client, spawned.lease_id, spawned.warnings)
    all_of_it = fields_of(spawned) | {"warnings": warnings}
    show_item(ctx, spawned, _spawned_facts, fields=lambda _spawned: all_of_it)


@app.command("list", epilog="Example: hwqueue lease list --queue renders --state failed")
def list_(
    ctx: typer.Context,
    *,
    queue: Annotated[str | None, typer.Option(help="Only of this queue.", autocompletion=queue_names)] = None,
    state: bulk.State = None,
    task: bulk.Task = None,
    label: bulk.Label = None,
    error: bulk.Error = None,
    key: Annotated[
        str | None, typer.Option(help="With --queue: the lease with this idempotency key.")
    ] = None,
    tenant: bulk.Tenant = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most this many.")] = 50,
    before: Annotated[
        str | None, typer.Option(help="Older than this lease: the last id of the page before.")
    ] = None,
) -> None:
    """List leases, newest first."""
    older = identifier(before, "--before") if before else None
    with open_client(ctx) as client:
        found = client.list_leases(
            queue=queue,
            state=state,
            task=task,
            labels=pairs(label, "--label") if label else None,
            error_type=error,
            idempotency_key=key,
            tenant=tenant,
            limit=limit,
            before=older,
        )
        names = {node.node_id: node.name for node in client.list_nodes()} if found else {}
    failed = any(lease.error is not None for lease in found)
    row = partial(_row, names=names, with_error=failed)
    show_items(ctx, found, row, empty="no such leases")
    if len(found) == limit:
        say(ctx, f"there may be more: --before {found[-1].lease_id}")


@app.command(epilog="Example: hwqueue lease show 01890a5d-ac96-774b-bcce-b302099a8057 --json")
def show(
    ctx: typer.Context,
    lease_id: Annotated[str, typer.Argument(help="Id of the lease.")],
) -> None:
    """Show all that is known about a lease, its failed attempts included."""
    with open_client(ctx) as client:
        lease = client.get_lease(identifier(lease_id, "LEASE_ID"))
        saved = client.lease_checkpoints(lease.lease_id)
        names = {node.node_id: node.name for node in client.list_nodes()} if lease.attempts else {}
        show_lease(ctx, lease, names, saved)
        mention(ctx, client, lease.lease_id)


@app.command(
    epilog="Example: hwqueue lease signal 01890a5d-ac96-774b-bcce-b302099a8057 packed "
    "--payload '{\"parcel\": 7}'"
)
def signal(
    ctx: typer.Context,
    lease_id: Annotated[str, typer.Argument(help="Id of the lease.")],
    name: Annotated[str, typer.Argument(help="What the handler waits for.")],
    *,
    payload: Annotated[str, typer.Option(help="JSON; what wait_for returns.")] = "null",
    key: Annotated[str | None, typer.Option(help="The same name and key reach the lease once.")] = None,
) -> None:
    """Send a lease a signal; one that is suspended until it comes is claimable at once."""
    sent = json_value(payload, "--payload")
    with open_client(ctx) as client:
        answer = client.signal_lease(identifier(lease_id, "LEASE_ID"), name, sent, key=key)
    show_item(ctx, answer, lambda one: {"created": one.created, "state": one.state})


@app.command(epilog="Example: hwqueue lease logs 01890a5d-ac96-774b-bcce-b302099a8057 --follow")
def logs(
    ctx: typer.Context,
    lease_id: Annotated[str, typer.Argument(help="Id of the lease.")],
    *,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Show what comes until the lease has ended.")
    ] = False,
    attempt: Annotated[int | None, typer.Option(min=1, help="Only of this attempt.")] = None,
    tail: Annotated[int | None, typer.Option("--tail", "-n", min=1, max=1000, help="The last ones.")] = None,
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


@app.command(epilog="Example: hwqueue lease wait 01890a5d-ac96-774b-bcce-b302099a8057 --timeout 10m")
def wait(
    ctx: typer.Context,
    lease_id: Annotated[str, typer.Argument(help="Id of the lease.")],
    *,
    timeout: Annotated[str | None, typer.Option(help="How long at most, such as 10m.")] = None,
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
    code = _EXIT_CODES[lease.state]
    if code:
        raise typer.Exit(code)


@app.command(epilog="Example: hwqueue lease explain 01890a5d-ac96-774b-bcce-b302099a8057")
def explain(
    ctx: typer.Context,
    lease_id: Annotated[str, typer.Argument(help="Id of the lease.")],
    *,
    nodes: Annotated[int, typer.Option(min=0, max=20, help="Show this many of the nearest nodes.")] = 5,
) -> None:
    """Say why a lease is where it is: of a pending one, what keeps which nodes from it."""
    with open_client(ctx) as client:
        explanation = client.explain_lease(identifier(lease_id, "LEASE_ID"))
    show_explanation(ctx, explanation, nodes)


@app.command(epilog="Example: hwqueue lease history 01890a5d-ac96-774b-bcce-b302099a8057")
def history(
    ctx: typer.Context,
    lease_id: Annotated[str, typer.Argument(help="Id of the lease.")],
) -> None:
    """Show the life line of a lease: spawned, waited, claimed where, how each attempt ended."""
    with open_client(ctx) as client:
        found = client.lease_history(identifier(lease_id, "LEASE_ID"))
    show_items(ctx, found, _step_row)


@app.command(epilog="Example: hwqueue lease cancel --queue renders --label film=7 --dry-run")
def cancel(
    ctx: typer.Context,
    lease_ids: MaybeIds = None,
    *,
    reason: Annotated[str | None, typer.Option(help="Kept with the lease.")] = None,
    queue: bulk.QueueOption = None,
    state: bulk.State = None,
    task: bulk.Task = None,
    label: bulk.Label = None,
    older: bulk.Older = None,
    tenant: bulk.Tenant = None,
    dry_run: bulk.DryRun = False,
    yes: bulk.Yes = False,
) -> None:
    """Cancel leases; of a running one its worker is asked to stop."""
    chosen = bulk.select(
        queue, lease_ids, bulk.OPEN, state=state, older=older, label=label, task=task, tenant=tenant
    )
    with open_client(ctx) as client:
        if chosen is None:
            _each(ctx, lease_ids, partial(client.cancel_lease, reason=reason))
            return
        change = partial(client.cancel_leases, chosen.queue, reason=reason, **chosen.wanted)
        bulk.change_all(
            ctx,
            client,
            chosen,
            change,
            verb="cancel",
            done="cancelled",
            dry_run=dry_run,
            yes=yes,
        )


@app.command(epilog="Example: hwqueue lease requeue --queue renders --error TimeoutError --older 2h")
def requeue(
    ctx: typer.Context,
    lease_ids: MaybeIds = None,
    *,
    failed: Annotated[
        str | None,
        typer.Option(help="The failed leases of this queue, without asking.", autocompletion=queue_names),
    ] = None,
    queue: bulk.QueueOption = None,
    state: bulk.State = LeaseState.FAILED,
    task: bulk.Task = None,
    label: bulk.Label = None,
    error: bulk.Error = None,
    older: bulk.Older = None,
    tenant: bulk.Tenant = None,
    limit: Annotated[int | None, typer.Option(min=1, help="With --failed: at most this many.")] = None,
    dry_run: bulk.DryRun = False,
    yes: bulk.Yes = False,
) -> None:
    """Run failed or cancelled leases again, with their attempts counted afresh."""
    if failed:
        if lease_ids or queue or label or error or older or tenant:
            raise ConfigError("--failed goes with --task and --limit; use --queue with other filters")
        with open_client(ctx) as client:
            show_one(ctx, {"requeued": client.requeue_failed(failed, task=task, limit=limit)})
        return
    if limit:
        raise ConfigError("--limit goes with --failed QUEUE")
    chosen = bulk.select(
        queue,
        lease_ids,
        bulk.DEAD,
        state=state if queue else None,
        older=older,
        label=label,
        task=task,
        error=error,
        tenant=tenant,
    )
    with open_client(ctx) as client:
        if chosen is None:
            _each(ctx, lease_ids, client.requeue_lease)
            return
        change = partial(client.requeue_leases, chosen.queue, **chosen.wanted)
        bulk.change_all(
            ctx,
            client,
            chosen,
            change,
            verb="requeue",
            done="requeued",
            dry_run=dry_run,
            yes=yes,
        )


@app.command(epilog="Example: hwqueue lease delete --queue renders --state cancelled --older 1d")
def delete(
    ctx: typer.Context,
    queue: Annotated[str, typer.Option(help="Of this queue.", autocompletion=queue_names)],
    *,
    state: bulk.State = None,
    task: bulk.Task = None,
    label: bulk.Label = None,
    error: bulk.Error = None,
    older: bulk.Older = None,
    tenant: bulk.Tenant = None,
    dry_run: bulk.DryRun = False,
    yes: bulk.Yes = False,
) -> None:
    """Delete finished leases with their results, before their retention is over."""
    chosen = bulk.select(
        queue,
        None,
        bulk.ENDED,
        state=state,
        older=older,
        label=label,
        task=task,
        error=error,
        tenant=tenant,
    )
    assert chosen is not None
    with open_client(ctx) as client:
        change = partial(client.delete_leases, chosen.queue, **chosen.wanted)
        bulk.change_all(
            ctx,
            client,
            chosen,
            change,
            verb="delete",
            done="deleted",
            dry_run=dry_run,
            yes=yes,
        )


@app.command(epilog="Example: hwqueue lease priority 10 --queue renders --label film=7")
def priority(
    ctx: typer.Context,
    value: Annotated[int, typer.Argument(help="Higher runs first.")],
    queue: Annotated[str, typer.Option(help="Of this queue.", autocompletion=queue_names)],
    *,
    state: bulk.State = None,
    task: bulk.Task = None,
    label: bulk.Label = None,
    older: bulk.Older = None,
    tenant: bulk.Tenant = None,
    dry_run: bulk.DryRun = False,
    yes: bulk.Yes = False,
) -> None:
    """Change the priority of waiting leases."""
    chosen = bulk.select(
        queue, None, bulk.WAITING, state=state, older=older, label=label, task=task, tenant=tenant
    )
    assert chosen is not None
    changes: LeaseChanges = {"priority": value}
    with open_client(ctx) as client:
        change = partial(client.update_leases, chosen.queue, changes, **chosen.wanted)
        bulk.change_all(
            ctx,
            client,
            chosen,
            change,
            verb="change the priority of",
            done="changed",
            dry_run=dry_run,
            yes=yes,
        )


@app.command(epilog="Example: hwqueue lease move gpu-b --queue gpu-a --label film=7")
def move(
    ctx: typer.Context,
    to: Annotated[str, typer.Argument(metavar="QUEUE", help="Where to.", autocompletion=queue_names)],
    lease_ids: MaybeIds = None,
    *,
    queue: bulk.QueueOption = None,
    state: bulk.State = None,
    task: bulk.Task = None,
    label: bulk.Label = None,
    older: bulk.Older = None,
    tenant: bulk.Tenant = None,
    dry_run: bulk.DryRun = False,
    yes: bulk.Yes = False,
) -> None:
    """Move waiting leases to another queue; a lease that cannot be there stays."""
    chosen = bulk.select(
        queue,
        lease_ids,
        bulk.WAITING,
        state=state,
        older=older,
        label=label,
        task=task,
        tenant=tenant,
    )
    with open_client(ctx) as client:
        if chosen is None:
            _each(ctx, lease_ids, partial(client.update_lease, queue=to))
            return
        change = partial(client.update_leases, chosen.queue, {"queue": to}, **chosen.wanted)
        bulk.change_all(
            ctx,
            client,
            chosen,
            change,
            verb=f"move to {to}",
            done="moved",
            dry_run=dry_run,
            yes=yes,
        )


def _each(ctx: typer.Context, lease_ids: list[str] | None, call: Callable[[UUID], object]) -> None:
    """Call it for each id and print what became of it."""
    rows, problems = _one_by_one(lease_ids or [], call)
    if not options_of(ctx).json:
        for row in rows:
            if row["state"] == LeaseState.CLAIMED:
                row["state"] = "asked to stop"
    show_rows(ctx, rows)
    if problems:
        raise typer.Exit(ExitCode.FAILED)


def _one_by_one(lease_ids: list[str], call: Callable[[UUID], object]) -> tuple[list[dict[str, object]], int]:
    """Call it for each, so that one that is refused does not hold back the others.

    A refusal of the only one is raised. Returns: a row for each, and how many were refused.
    """
    ids = [identifier(text, "LEASE_IDS") for text in lease_ids]
    if len(ids) == 1:
        return [{"lease_id": ids[0], "state": call(ids[0])}], 0
    rows: list[dict[str, object]] = []
    problems = 0
    for lease_id in ids:
        try:
            rows.append({"lease_id": lease_id, "state": call(lease_id), "error": None})
        except LeaseError as error:
            problems += 1
            rows.append({"lease_id": lease_id, "state": None, "error": str(error)})
    return rows, problems


def _step_row(step: LeaseEvent) -> dict[str, object]:
    return {
        "at": step.at,
        "event": step.event,
        "lasted": duration(step.lasted),
        "attempt": step.attempt,
        "node": step.node_name,
        "detail": step.detail,
    }


def _row(lease: LeaseSummary, *, names: Mapping[UUID, str], with_error: bool) -> dict[str, object]:
    row = {
        "lease_id": lease.lease_id,
        "queue": lease.queue,
        "task": lease.task_name,
        "state": lease.state,
        "priority": lease.priority,
        "attempt": f"{lease.attempt}/{lease.max_attempts}",
        "created_at": lease.created_at,
        "node": names.get(lease.node_id) if lease.node_id else None,
    }
    if with_error:
        row["error"] = None if lease.error is None else error_line(lease.error)
    return row


def _spawned_facts(spawned: SpawnResult) -> dict[str, object]:
    return {"lease_id": spawned.lease_id, "created": spawned.created, "state": spawned.state}
