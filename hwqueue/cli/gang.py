"""hwqueue gang: leases that start together or not at all; spawn, explain and cancel them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import typer

from hwqueue.cli import spawning
from hwqueue.cli.completion import queue_names
from hwqueue.cli.connect import open_client
from hwqueue.cli.gang_explanation import show_gang_explanation
from hwqueue.cli.inputs import (
    identifier,
    json_object,
    json_value,
    labels,
    moment,
    moment_after,
    pairs,
    span,
)
from hwqueue.cli.options import options_of
from hwqueue.cli.output import plain_text, say, show_item, show_items, show_one, show_rows
from hwqueue.errors import ConfigError
from hwqueue.text import duration, plural
from hwqueue.types import Gang, GangMember, GangState, GangSummary

app = typer.Typer(
    no_args_is_help=True, help="Leases that start together or not at all: spawn, explain, cancel."
)

GangId = Annotated[str, typer.Argument(help="Id of the gang.")]
Kinds = Annotated[
    list[str] | None,
    typer.Option("--member", help="TASK:COUNT, or TASK:COUNT:PARAMS with JSON or a file; repeatable."),
]
Listed = Annotated[
    str | None,
    typer.Option(
        "--members",
        help="Instead: a list of task, params, count and options; JSON, a file, or - for stdin.",
    ),
]
MinSize = Annotated[
    int | None,
    typer.Option(
        "--min-size",
        help="How many must start together; the others join when there is room.",
        show_default="all",
    ),
]
Together = Annotated[
    list[str] | None,
    typer.Option(
        "--together",
        help="All in one node, rack or label:KEY; repeatable: the first with room."
        " fleet as the last one: else anywhere.",
    ),
]
Same = Annotated[
    list[str] | None,
    typer.Option("--same", help="Node label whose values they have in common; repeatable."),
]
Places = Annotated[int, typer.Option("--places", min=0, max=20, help="Show this many of the places.")]

_EXAMPLE_ID = "01890a5d-ac96-774b-bcce-b302099a8057"
_MEMBER = re.compile(r"(.+?):(\d+)(?::(.+))?", re.DOTALL)


@app.command(
    epilog="Example: hwqueue gang spawn training --member 'train:4:{\"epochs\": 3}' "
    '--together rack --placement \'{"resources": {"gpu": 8}}\''
)
def spawn(
    ctx: typer.Context,
    queue: Annotated[str, typer.Argument(help="Queue to put it in.", autocompletion=queue_names)],
    *,
    member: Kinds = None,
    members: Listed = None,
    min_size: MinSize = None,
    together: Together = None,
    same: Same = None,
    on_lost: Annotated[
        Literal["stop", "replace", "continue"] | None,
        typer.Option(
            help="When one is lost, and too few are left: the others start again with it, or go on "
            "while it is placed again; continue: they go on without it.",
            show_default="stop",
        ),
    ] = None,
    hold: Annotated[
        str | None,
        typer.Option(help="How long nodes have to fetch their members.", show_default="30s"),
    ] = None,
    gang_id: Annotated[
        str | None, typer.Option(help="An id of your own: the same id spawns only once.")
    ] = None,
    placement: spawning.Placement = None,
    node_label: spawning.NodeLabel = None,
    priority: spawning.Priority = None,
    label: spawning.Label = None,
    deadline: spawning.Deadline = None,
    max_run: spawning.MaxRun = None,
    max_attempts: spawning.MaxAttempts = None,
    tenant: spawning.Tenant = None,
    one_of: spawning.OneOf = None,
) -> None:
    """Spawn a gang: its leases wait until there is room for all of them, or for --min-size.

    --placement and --node-label hold for each member that says nothing itself.
    """
    wanted = _wanted(member, members, placement, node_label)
    with open_client(ctx) as client:
        spawned = client.spawn_gang(
            queue,
            wanted,
            gang_id=None if gang_id is None else identifier(gang_id, "--gang-id"),
            min_size=min_size,
            together=together or None,
            same=same or None,
            on_lost=on_lost,
            hold=span(hold, "--hold"),
            priority=priority,
            labels=pairs(label, "--label") if label else None,
            deadline=moment_after(deadline, "--deadline"),
            max_run=span(max_run, "--max-run"),
            max_attempts=max_attempts,
            tenant=tenant,
            one_of=None if one_of is None else identifier(one_of, "--one-of"),
        )
        found = spawned[0].gang_id
        warnings = spawning.warn(ctx, client, found)
    if options_of(ctx).json:
        show_one(ctx, {"gang_id": found, "members": spawned, "warnings": warnings})
        return
    typer.echo(found)
    say(ctx, f"{plural(len(spawned), 'lease')}; how far it is: hwqueue gang show {found}")


@app.command("list", epilog="Example: hwqueue gang list --state waiting")
def list_(
    ctx: typer.Context,
    *,
    state: Annotated[GangState | None, typer.Option(help="Only these.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most this many.")] = 50,
    before: Annotated[
        str | None, typer.Option(help="Time of the last of a page, to get the next one.")
    ] = None,
    before_gang: Annotated[
        str | None, typer.Option(help="And its id: others may have been spawned at that time.")
    ] = None,
) -> None:
    """List gangs, newest first."""
    last = None if before_gang is None else identifier(before_gang, "--before-gang")
    with open_client(ctx) as client:
        found = client.list_gangs(
            state=state, limit=limit, before=moment(before, "--before"), before_gang=last
        )
    show_items(ctx, found, _row, empty="no gangs")
    if len(found) == limit:
        last_of = f"--before {found[-1].created_at.isoformat()} --before-gang {found[-1].gang_id}"
        say(ctx, f"there may be more: {last_of}")


@app.command(epilog=f"Example: hwqueue gang show {_EXAMPLE_ID}")
def show(ctx: typer.Context, gang_id: GangId) -> None:
    """Show a gang, why it waits, and its members: where they run, or that they wait."""
    with open_client(ctx) as client:
        found = client.get_gang(identifier(gang_id, "GANG_ID"))
    show_item(ctx, found, _facts)
    if not options_of(ctx).json:
        typer.echo("")
        show_rows(ctx, [_member_row(each) for each in found.members])


@app.command(epilog=f"Example: hwqueue gang explain {_EXAMPLE_ID}")
def explain(ctx: typer.Context, gang_id: GangId, *, places: Places = 5) -> None:
    """Say why a gang waits: where its members have room, what is in the way, and the ways out."""
    with open_client(ctx) as client:
        found = client.explain_gang(identifier(gang_id, "GANG_ID"))
    show_gang_explanation(ctx, found, places)


@app.command(
    epilog="Example: hwqueue gang what-if training --member train:4 --together rack "
    '--placement \'{"resources": {"gpu": 8}}\''
)
def what_if(
    ctx: typer.Context,
    queue: Annotated[str, typer.Argument(help="Queue of it.", autocompletion=queue_names)],
    *,
    member: Kinds = None,
    members: Listed = None,
    min_size: MinSize = None,
    together: Together = None,
    same: Same = None,
    placement: spawning.Placement = None,
    node_label: spawning.NodeLabel = None,
    tenant: spawning.Tenant = None,
    places: Places = 5,
) -> None:
    """Say whether a gang would start now if it were spawned, and if not, why; spawn nothing."""
    wanted = _wanted(member, members, placement, node_label)
    with open_client(ctx) as client:
        found = client.what_if_gang(
            queue,
            wanted,
            min_size=min_size,
            together=together or None,
            same=same or None,
            tenant=tenant,
        )
    show_gang_explanation(ctx, found, places)


@app.command(epilog=f"Example: hwqueue gang cancel {_EXAMPLE_ID} --reason 'wrong data'")
def cancel(
    ctx: typer.Context,
    gang_id: GangId,
    *,
    reason: Annotated[str | None, typer.Option(help="Kept with the gang.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Cancel a gang: what waits ends within about a second, what runs is asked to stop."""
    wanted = identifier(gang_id, "GANG_ID")
    with open_client(ctx) as client:
        if not yes:
            found = client.get_gang(wanted)
            what = f"gang {wanted} of {plural(found.size, 'lease')}, which is {found.state}"
            typer.confirm(f"cancel {plain_text(what)}?", abort=True, err=True)
        state = client.cancel_gang(wanted, reason=reason)
    show_one(ctx, {"gang_id": wanted, "state": state})


def _wanted(
    typed: list[str] | None, listed: str | None, placement: str | None, node_label: list[str] | None
) -> list[dict[str, Any]]:
    """The members, with what all ask of their nodes. Raises: ConfigError."""
    shared = {
        "placement": json_object(placement, "--placement") if placement else None,
        "affinity_tags": labels(node_label, "--node-label") or None,
    }
    return [_with_options(each, shared) for each in _members(typed or [], listed)]


def _members(typed: list[str], listed: str | None) -> list[dict[str, Any]]:
    """The members as `spawn_gang` takes them. Raises: ConfigError."""
    if bool(typed) is (listed is not None):
        raise ConfigError(
            "give members: --member for each kind, or all by --members",
            hint="such as --member train:4",
        )
    if listed is None:
        return [_member(text) for text in typed]
    found = json_value(listed, "--members")
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise ConfigError(
            "--members: a JSON list of objects is needed",
            hint='such as --members \'[{"task": "train", "count": 4}]\'',
        )
    return found


def _member(text: str) -> dict[str, Any]:
    """Read `TASK:COUNT[:PARAMS]`. Raises: ConfigError."""
    read = _MEMBER.fullmatch(text)
    if read is None:
        raise ConfigError(
            f"--member: {text[:80]!r} is not TASK:COUNT or TASK:COUNT:PARAMS",
            hint="such as --member train:4 or --member 'train:4:{\"epochs\": 3}'",
        )
    task, count, params = read.groups()
    member: dict[str, Any] = {"task": task, "count": int(count)}
    if params is not None:
        member["params"] = json_value(params, "--member")
    return member


def _with_options(member: dict[str, Any], shared: Mapping[str, Any]) -> dict[str, Any]:
    """The member with the options that all have; its own go before them."""
    given = {name: value for name, value in shared.items() if value is not None}
    own = member.get("options") or {}
    # what is no object is for the database to refuse
    return {**member, "options": {**given, **own}} if given and isinstance(own, dict) else member


def _row(gang: GangSummary) -> dict[str, Any]:
    ended = gang.finished_at
    return {
        "gang_id": gang.gang_id,
        "queue": gang.queue,
        "state": gang.state,
        "reason": gang.reason,
        "size": gang.size,
        "place": gang.place,
        "created_at": gang.created_at,
        "lasted": duration(ended - gang.created_at) if ended else None,
    }


def _facts(gang: Gang) -> dict[str, Any]:
    return {
        "gang_id": gang.gang_id,
        "queue": gang.queue,
        "tenant": gang.tenant or None,
        "run_id": gang.run_id,
        "step": gang.step,
        "state": gang.state,
        "reason": gang.reason,
        "size": gang.size,
        "min_size": gang.min_size if gang.min_size < gang.size else None,
        "missing": gang.missing or None,
        "together": ", ".join(gang.together) or None,
        "same": ", ".join(gang.same) or None,
        "on_lost": gang.on_lost,
        "place": gang.place,
        "losses": gang.losses,
        "next_try_at": gang.next_try_at,
        "starts_by": gang.starts_by,
        "created_at": gang.created_at,
        "started_at": gang.started_at,
        "finished_at": gang.finished_at,
    }


def _member_row(member: GangMember) -> dict[str, Any]:
    held = "reserved" if member.reserved_until else "earmarked" if member.earmarked else None
    return {
        "rank": member.rank,
        "lease_id": member.lease_id,
        "state": held or member.state,
        "node": member.node,
    }
