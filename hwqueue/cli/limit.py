"""hwqueue limit: how many leases run at once or start in a time, and whose turn it is."""

from typing import Annotated, Literal

import typer
from typer import Argument, Option

from hwqueue.cli.completion import limit_names
from hwqueue.cli.connect import ask
from hwqueue.cli.groups import Commands
from hwqueue.cli.inputs import json_object, moment, rate_of, span
from hwqueue.cli.output import ExitCode, say, show_items, show_one
from hwqueue.cli.tables import row_of
from hwqueue.client import Client
from hwqueue.errors import ConfigError
from hwqueue.types import Limit, LimitLane
from hwqueue.types.base import given

app = Commands("How many leases run at once or start in a time, and whose turn it is.")

Name = Annotated[str, Argument(help="Name of the limit.", autocompletion=limit_names)]


@app.command("hwqueue limit create per_user --slots 2 --by key")
def create(
    ctx: typer.Context,
    name: Name,
    *,
    slots: Annotated[int | None, Option(help="How many run at once.")] = None,
    rate: Annotated[str | None, Option(help="How many start in which span: 600/1m.")] = None,
    burst: Annotated[int | None, Option(help="Of a rate: how many start at once after a pause.")] = None,
    fair: Annotated[bool, Option("--fair", help="Each key has its turn.")] = False,
    by: Annotated[
        Literal["key", "tenant"] | None, Option(help="Each key that leases name, or tenant, has its own.")
    ] = None,
    weights: Annotated[str | None, Option(help="Of a fair one, by key; * of others: JSON, a file.")] = None,
) -> None:
    """Create a limit; one that is there with the same specification stays."""
    spec = given(
        slots=slots,
        rate=None if rate is None else rate_of(rate, "--rate") | given(burst=burst),
        fair=fair or None,
        by=by,
        weights=None if weights is None else json_object(weights, "--weights"),
    )
    done = ask(ctx, Client.create_limit, name, spec)
    say(ctx, f"{name} is made" if done else f"{name} is there already")


@app.command("""hwqueue limit set openai '{"rate": {"count": 300, "per": "1 min"}}'""")
def set_(
    ctx: typer.Context,
    name: Name,
    changes: Annotated[str, Argument(help="Keys of its specification, null resets one: JSON, a file, or -.")],
) -> None:
    """Change a limit; fewer slots stop nothing that runs."""
    spec = ask(ctx, Client.set_limit, name, json_object(changes, "CHANGES"))
    show_one(ctx, {"name": name, "spec": spec})


@app.command("hwqueue limit list --json")
def list_(ctx: typer.Context) -> None:
    """List the limits, and how much of each is in use."""
    found = ask(ctx, Client.list_limits)
    show_items(ctx, found, _row, empty="no limits; make one: hwqueue limit create NAME")


@app.command("hwqueue limit show per_user --order wait")
def show(
    ctx: typer.Context,
    name: Name,
    *,
    order: Annotated[Literal["parked", "wait"], Option(help="wait: longest wait first.")] = "parked",
    limit: Annotated[int, Option(help="Most to show.", min=1, max=10_000)] = 50,
) -> None:
    """List the lanes of a limit: those in which most leases wait first."""
    found = ask(ctx, Client.limit_lanes, name, order=order, limit=limit)
    show_items(ctx, found, _lane, empty="no lane yet: the next claim, or reap, counts what has come")


@app.command("hwqueue limit throttle openai --for 30s")
def throttle(
    ctx: typer.Context,
    name: Name,
    *,
    key: Annotated[str | None, Option(help="The lane of this key; left out: it has one lane.")] = None,
    tenant: Annotated[str | None, Option(help="Whose key that is.")] = None,
    for_: Annotated[str | None, Option("--for", help="A span, such as 30s.")] = None,
    until: Annotated[str | None, Option(help="A time instead.")] = None,
    open_: Annotated[bool, Option("--open", help="Open it again.")] = False,
) -> None:
    """Let nothing pass for a while; what has passed may still start."""
    if (for_ is None and until is None) != open_:
        raise ConfigError("give --for or --until, or --open")
    closed = ask(
        ctx,
        Client.throttle_limit,
        name,
        key,
        until=moment(until, "--until"),
        retry_after=span(for_, "--for"),
        tenant=tenant,
    )
    say(ctx, f"{name} is open" if closed is None else f"{name} is closed until {closed:%Y-%m-%d %H:%M:%S %Z}")


@app.command("hwqueue limit drop openai")
def drop(ctx: typer.Context, name: Name) -> None:
    """Drop a limit; what waits for it goes on without."""
    done = ask(ctx, Client.drop_limit, name)
    say(ctx, f"{name} is dropped" if done else f"no limit is named {name}")
    if not done:
        raise typer.Exit(ExitCode.NOT_FOUND)


_row = row_of(
    Limit,
    "name what lanes used parked oldest_at closed_until opens_at queues",
    what=lambda each: each.words,
    queues=lambda each: " ".join(each.queues),
)
_lane = row_of(LimitLane, "tenant key used most parked weight since closed_until opens_at lease_id")
