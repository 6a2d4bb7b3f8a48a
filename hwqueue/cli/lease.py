"""hwqueue lease: spawn work, look at it, cancel it, run it again."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated
from uuid import UUID

import typer
from rich.console import Console

from hwqueue.cli.completion import queue_names
from hwqueue.cli.connect import open_client
from hwqueue.cli.explanation import show_explanation
from hwqueue.cli.failures import error_line, show_lease
from hwqueue.cli.inputs import (
    identifier,
    json_object,
    json_value,
    labels,
    moment_after,
    pairs,
    span,
)
from hwqueue.cli.lease_bar import wait_with_bar
from hwqueue.cli.options import options_of
from hwqueue.cli.output import ExitCode, say, show_item, show_items, show_one, show_rows
from hwqueue.errors import ConfigError, LeaseError
from hwqueue.text import duration
from hwqueue.types import LeaseEvent, LeaseState, LeaseSummary, SpawnOptions, SpawnResult

app = typer.Typer(no_args_is_help=True, help="Spawn work, look at it, cancel it, run it again.")

_EXIT_CODES = {
    LeaseState.COMPLETED: ExitCode.OK,
    LeaseState.FAILED: ExitCode.FAILED,
    LeaseState.CANCELLED: ExitCode.CANCELLED,
}

LeaseIds = Annotated[list[str], typer.Argument(help="Ids of leases.", show_default=False)]


@app.command(
    epilog="Example: hwqueue lease spawn renders draw --params '{\"frame\": 7}' "
    '--node-label gpu=true --placement \'{"resources": {"gpu": 1}}\''
)
def spawn(
    ctx: typer.Context,
    queue: Annotated[
        str,
        typer.Argument(help="Queue to put it in.", show_default=False, autocompletion=queue_names),
    ],
    task: Annotated[str, typer.Argument(help="Task that runs it.", show_default=False)],
    *,
    params: Annotated[str, typer.Option(help="What the task gets: JSON or a file.")] = "{}",
    placement: Annotated[
        str | None, typer.Option(help="What it asks of a node: JSON or a file.")
    ] = None,
    node_label: Annotated[
        list[str] | None,
        typer.Option(
            "--node-label",
            "--tags",
            help="Label that the node must have, key=value, or several as JSON; goes with "
            "--placement.",
        ),
    ] = None,
    priority: Annotated[int | None, typer.Option(help="Higher runs first.")] = None,
    label: Annotated[
        list[str] | None, typer.Option(help="Label of the lease, key=value; repeatable.")
    ] = None,
    delay: Annotated[str | None, typer.Option(help="Not before this span, such as 10m.")] = None,
    deadline: Annotated[
        str | None,
        typer.Option(help="Fails if nobody has claimed it by this time, or within this span: 2h."),
    ] = None,
    max_attempts: Annotated[int | None, typer.Option(help="Attempts before it is dead.")] = None,
    key: Annotated[
        str | None, typer.Option(help="Idempotency key: the same key spawns only once.")
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="Whose work it is.")] = None,
) -> None:
    """Spawn a lease and print its id and state."""
    options: SpawnOptions = {
        "placement": json_object(placement, "--placement") if placement else None,
        "affinity_tags": labels(node_label, "--node-label") or None,
        "priority": priority,
        "labels": pairs(label, "--label") if label else None,
        "delay": span(delay, "--delay"),
        "deadline": moment_after(deadline, "--deadline"),
        "max_attempts": max_attempts,
        "idempotency_key": key,
        "tenant": tenant,
    }
    with open_client(ctx) as client:
        spawned = client.spawn_lease(queue, task, json_value(params, "--params"), **options)
    show_item(ctx, spawned, _spawned_facts)


@app.command("list", epilog="Example: hwqueue lease list --queue renders --state failed")
def list_(
    ctx: typer.Context,
    *,
    queue: Annotated[
        str | None, typer.Option(help="Only of this queue.", autocompletion=queue_names)
    ] = None,
    state: Annotated[LeaseState | None, typer.Option(help="Only in this state.")] = None,
    task: Annotated[str | None, typer.Option(help="Only of this task.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most this many.")] = 50,
    before: Annotated[
        str | None, typer.Option(help="Older than this lease: the last id of the page before.")
    ] = None,
) -> None:
    """List leases, newest first."""
    older = identifier(before, "--before") if before else None
    with open_client(ctx) as client:
        found = client.list_leases(queue=queue, state=state, task=task, limit=limit, before=older)
        names = {node.node_id: node.name for node in client.list_nodes()} if found else {}
    failed = any(lease.error is not None for lease in found)
    row = partial(_row, names=names, with_error=failed)
    show_items(ctx, found, row, empty="no such leases")
    if len(found) == limit:
        say(ctx, f"there may be more: --before {found[-1].lease_id}")


@app.command(epilog="Example: hwqueue lease show 01890a5d-ac96-774b-bcce-b302099a8057 --json")
def show(
    ctx: typer.Context,
    lease_id: Annotated[str, typer.Argument(help="Id of the lease.", show_default=False)],
) -> None:
    """Show all that is known about a lease, its failed attempts included."""
    with open_client(ctx) as client:
        lease = client.get_lease(identifier(lease_id, "LEASE_ID"))
        names = {node.node_id: node.name for node in client.list_nodes()} if lease.attempts else {}
    show_lease(ctx, lease, names)


@app.command(
    epilog="Example: hwqueue lease wait 01890a5d-ac96-774b-bcce-b302099a8057 --timeout 10m"
)
def wait(
    ctx: typer.Context,
    lease_id: Annotated[str, typer.Argument(help="Id of the lease.", show_default=False)],
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
    names = ("lease_id", "state", "attempt", "finished_at", "result", "error")
    show_one(ctx, {name: getattr(lease, name) for name in names})
    code = _EXIT_CODES[lease.state]
    if code:
        raise typer.Exit(code)


@app.command(epilog="Example: hwqueue lease explain 01890a5d-ac96-774b-bcce-b302099a8057")
def explain(
    ctx: typer.Context,
    lease_id: Annotated[str, typer.Argument(help="Id of the lease.", show_default=False)],
    *,
    nodes: Annotated[
        int, typer.Option(min=0, max=20, help="Show this many of the nearest nodes.")
    ] = 5,
) -> None:
    """Say why a lease is where it is: of a pending one, what keeps which nodes from it."""
    with open_client(ctx) as client:
        explanation = client.explain_lease(identifier(lease_id, "LEASE_ID"))
    show_explanation(ctx, explanation, nodes)


@app.command(epilog="Example: hwqueue lease history 01890a5d-ac96-774b-bcce-b302099a8057")
def history(
    ctx: typer.Context,
    lease_id: Annotated[str, typer.Argument(help="Id of the lease.", show_default=False)],
) -> None:
    """Show the life line of a lease: spawned, waited, claimed where, how each attempt ended."""
    with open_client(ctx) as client:
        found = client.lease_history(identifier(lease_id, "LEASE_ID"))
    show_items(ctx, found, _step_row)


@app.command(epilog="Example: hwqueue lease cancel 01890a5d-ac96-774b-bcce-b302099a8057")
def cancel(
    ctx: typer.Context,
    lease_ids: LeaseIds,
    reason: Annotated[str | None, typer.Option(help="Kept with the lease.")] = None,
) -> None:
    """Cancel leases; of a running one its worker is asked to stop."""
    with open_client(ctx) as client:
        rows, problems = _one_by_one(lease_ids, partial(client.cancel_lease, reason=reason))
    show_rows(ctx, rows)
    if problems:
        raise typer.Exit(ExitCode.FAILED)


@app.command(epilog="Example: hwqueue lease requeue --failed renders --task draw")
def requeue(
    ctx: typer.Context,
    lease_ids: Annotated[
        list[str] | None, typer.Argument(help="Ids of leases.", show_default=False)
    ] = None,
    failed: Annotated[
        str | None,
        typer.Option(
            help="Instead of ids: the failed leases of this queue.", autocompletion=queue_names
        ),
    ] = None,
    task: Annotated[str | None, typer.Option(help="With --failed: only of this task.")] = None,
    limit: Annotated[
        int | None, typer.Option(min=1, help="With --failed: at most this many.")
    ] = None,
) -> None:
    """Run failed or cancelled leases again, with their attempts counted afresh."""
    if bool(lease_ids) == bool(failed):
        raise ConfigError("give ids of leases, or --failed QUEUE, and not both")
    if (task or limit) and not failed:
        raise ConfigError("--task and --limit go with --failed QUEUE")
    with open_client(ctx) as client:
        if failed:
            count = client.requeue_failed(failed, task=task, limit=limit)
            show_one(ctx, {"requeued": count})
            return
        rows, problems = _one_by_one(lease_ids or [], client.requeue_lease)
    show_rows(ctx, rows)
    if problems:
        raise typer.Exit(ExitCode.FAILED)


def _one_by_one(
    lease_ids: list[str], call: Callable[[UUID], object]
) -> tuple[list[dict[str, object]], int]:
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
