"""hwqueue gang: leases that start together or not at all; spawn, explain and cancel them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer
from typer import Argument, Option

from hwqueue.cli import spawning
from hwqueue.cli.completion import queue_names
from hwqueue.cli.connect import ask, open_client
from hwqueue.cli.explanation import show_gang_explanation
from hwqueue.cli.groups import Commands, Only
from hwqueue.cli.inputs import identifier, json_value, moment, span
from hwqueue.cli.options import options_of
from hwqueue.cli.output import plain_text, say, show_item, show_items, show_one, show_rows
from hwqueue.cli.tables import row_of
from hwqueue.client import Client
from hwqueue.errors import ConfigError
from hwqueue.text import duration, plural
from hwqueue.types import Gang, GangMember, GangState, GangSummary
from hwqueue.types.base import given

app = Commands("Leases that start together or not at all: spawn, explain, cancel.")

GangId = Annotated[str, Argument(help="Id of the gang.")]
Places = Annotated[int, Option(min=0, max=20, help="Show this many of the places.")]


@dataclass(frozen=True, kw_only=True)
class Members:
    """What starts together, and where."""

    member: Annotated[
        list[str] | None, Option(help="TASK:COUNT, or TASK:COUNT:PARAMS with JSON or a file; repeatable.")
    ] = None
    members: Annotated[
        str | None,
        Option(help="Instead: a list of task, params, count and options; JSON, a file, or - for stdin."),
    ] = None
    min_size: Annotated[int | None, Option(help=spawning.typed("gang.min_size"), show_default="all")] = None
    together: Annotated[list[str] | None, Option(help=spawning.typed("gang.together", "Repeatable."))] = None
    same: Annotated[list[str] | None, Option(help=spawning.typed("gang.same", "Repeatable."))] = None

    def options(self) -> dict[str, Any]:
        """What holds for all of them, as a client takes it."""
        return {"min_size": self.min_size, "together": self.together or None, "same": self.same or None}

    def wanted(self, flags: spawning.Flags) -> list[dict[str, Any]]:
        """Each, with what all ask of their nodes. Raises: ConfigError."""
        shared = given(**flags.asked_of_nodes())
        return [_with_options(each, shared) for each in _members(self.member or [], self.members)]


@dataclass(frozen=True, kw_only=True)
class _Flags(spawning.Flags):
    """The options that a gang has as a spawn has them; what its deadline means is its own."""

    deadline: Annotated[str | None, Option(help=spawning.typed("gang.deadline", spawning.A_MOMENT))] = None


_EXAMPLE_ID = "01890a5d-ac96-774b-bcce-b302099a8057"
_MEMBER = re.compile(r"(.+?):(\d+)(?::(.+))?", re.DOTALL)


@app.command(
    "hwqueue gang spawn training --member 'train:4:{\"epochs\": 3}' "
    '--together rack --placement \'{"resources": {"gpu": 8}}\''
)
def spawn(
    ctx: typer.Context,
    queue: Annotated[str, Argument(help="Queue to put it in.", autocompletion=queue_names)],
    *,
    gang: Members,
    on_lost: Annotated[
        Literal["stop", "replace", "continue"] | None,
        Option(help=spawning.typed("gang.on_lost"), show_default="stop"),
    ] = None,
    hold: Annotated[str | None, Option(help=spawning.typed("gang.hold"), show_default="30s")] = None,
    gang_id: Annotated[str | None, Option(help=spawning.typed("gang.gang_id"))] = None,
    flags: Annotated[
        _Flags,
        Only(
            *("placement", "node_label", "priority", "label", "deadline", "max_run"),
            *("max_attempts", "tenant", "one_of"),
        ),
    ],
) -> None:
    """Spawn a gang: its leases wait until there is room for all of them, or for --min-size.

    --placement and --node-label hold for each member that says nothing itself.
    """
    wanted = gang.wanted(flags)
    with open_client(ctx) as client:
        spawned = client.spawn_gang(
            queue,
            wanted,
            gang_id=None if gang_id is None else identifier(gang_id, "--gang-id"),
            on_lost=on_lost,
            hold=span(hold, "--hold"),
            **gang.options(),
            **flags.options(),
        )
        found = spawned[0].gang_id
        warnings = spawning.warn(ctx, client, found)
    if options_of(ctx).json:
        show_one(ctx, {"gang_id": found, "members": spawned, "warnings": warnings})
        return
    typer.echo(found)
    say(ctx, f"{plural(len(spawned), 'lease')}; how far it is: hwqueue gang show {found}")


@app.command("hwqueue gang list --state waiting")
def list_(
    ctx: typer.Context,
    *,
    state: Annotated[GangState | None, Option(help="Only these.")] = None,
    limit: Annotated[int, Option(min=1, max=1000, help="At most this many.")] = 50,
    before: Annotated[str | None, Option(help="Time of the last of a page, to get the next one.")] = None,
    before_gang: Annotated[
        str | None, Option(help="And its id: others may have been spawned at that time.")
    ] = None,
) -> None:
    """List gangs, newest first."""
    last = None if before_gang is None else identifier(before_gang, "--before-gang")
    older = moment(before, "--before")
    found = ask(ctx, Client.list_gangs, state=state, limit=limit, before=older, before_gang=last)
    show_items(ctx, found, _row, empty="no gangs")
    if len(found) == limit:
        behind = f"--before {found[-1].created_at.isoformat()} --before-gang {found[-1].gang_id}"
        say(ctx, f"there may be more: {behind}")


@app.command(f"hwqueue gang show {_EXAMPLE_ID}")
def show(ctx: typer.Context, gang_id: GangId) -> None:
    """Show a gang, why it waits, and its members: where they run, or that they wait."""
    found = ask(ctx, Client.get_gang, identifier(gang_id, "GANG_ID"))
    show_item(ctx, found, _facts)
    if not options_of(ctx).json:
        typer.echo("")
        show_rows(ctx, [_member_row(each) for each in found.members])


@app.command(f"hwqueue gang explain {_EXAMPLE_ID}")
def explain(ctx: typer.Context, gang_id: GangId, *, places: Places = 5) -> None:
    """Say why a gang waits: where its members have room, what is in the way, and the ways out."""
    found = ask(ctx, Client.explain_gang, identifier(gang_id, "GANG_ID"))
    show_gang_explanation(ctx, found, places)


@app.command(
    'hwqueue gang what-if training --member train:4 --together rack --placement \'{"resources": {"gpu": 8}}\''
)
def what_if(
    ctx: typer.Context,
    queue: Annotated[str, Argument(help="Queue of it.", autocompletion=queue_names)],
    *,
    gang: Members,
    flags: Annotated[spawning.Flags, Only("placement", "node_label", "tenant")],
    places: Places = 5,
) -> None:
    """Say whether a gang would start now if it were spawned, and if not, why; spawn nothing."""
    wanted = gang.wanted(flags)
    found = ask(ctx, Client.what_if_gang, queue, wanted, **gang.options(), tenant=flags.tenant)
    show_gang_explanation(ctx, found, places)


@app.command(f"hwqueue gang cancel {_EXAMPLE_ID} --reason 'wrong data'")
def cancel(
    ctx: typer.Context,
    gang_id: GangId,
    *,
    reason: Annotated[str | None, Option(help="Kept with the gang.")] = None,
    yes: Annotated[bool, Option("--yes", "-y", help="Do not ask.")] = False,
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


def _members(typed: list[str], listed: str | None) -> list[dict[str, Any]]:
    """The members as `spawn_gang` takes them. Raises: ConfigError."""
    if bool(typed) is (listed is not None):
        raise ConfigError(
            "give members: --member for each kind, or all by --members", hint="such as --member train:4"
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
    own = member.get("options") or {}
    # what is no object is for the database to refuse
    return {**member, "options": {**shared, **own}} if shared and isinstance(own, dict) else member


def _held(member: GangMember) -> str | None:
    """The state of a member that runs or waits; of one whose room is kept, that it is."""
    return "reserved" if member.reserved_until else "earmarked" if member.earmarked else member.state


_row = row_of(
    GangSummary,
    "gang_id queue state reason size place created_at lasted",
    lasted=lambda gang: duration(gang.finished_at - gang.created_at) if gang.finished_at else None,
)
_facts = row_of(
    Gang,
    "gang_id queue tenant run_id step state reason size min_size missing together same on_lost place "
    "losses next_try_at starts_by created_at started_at finished_at",
    tenant=lambda gang: gang.tenant or None,
    min_size=lambda gang: gang.min_size if gang.min_size < gang.size else None,
    missing=lambda gang: gang.missing or None,
    together=lambda gang: ", ".join(gang.together) or None,
    same=lambda gang: ", ".join(gang.same) or None,
)
_member_row = row_of(GangMember, "rank lease_id state node", state=_held)
