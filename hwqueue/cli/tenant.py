"""hwqueue tenant: whose leases run first."""

from typing import Annotated, Literal

import typer
from typer import Argument, Option

from hwqueue.cli.connect import ask
from hwqueue.cli.groups import Commands
from hwqueue.cli.output import ExitCode, say, show_items, show_one
from hwqueue.cli.tables import row_of
from hwqueue.client import Client
from hwqueue.types import Tenant

app = Commands("Whose leases run first.")

Name = Annotated[str, Argument(help="Name of the tenant; *: all without a row.")]


@app.command("hwqueue tenant set lab --tier scavenger")
def set_(
    ctx: typer.Context,
    name: Name,
    *,
    tier: Annotated[
        Literal["guaranteed", "best_effort", "scavenger"],
        Option(help="Of the leases that it spawns from now on; an earlier tier runs first."),
    ],
) -> None:
    """Change what a tenant may have."""
    show_one(ctx, {"name": name, **ask(ctx, Client.set_tenant, name, {"tier": tier})})


@app.command("hwqueue tenant list --json")
def list_(
    ctx: typer.Context,
    *,
    after: Annotated[str | None, Option(help="The last name of the page before.")] = None,
    limit: Annotated[int, Option(help="Most to show.", min=1, max=10_000)] = 100,
) -> None:
    """List the tenants that have a row."""
    found = ask(ctx, Client.list_tenants, after=after, limit=limit)
    show_items(ctx, found, _row, empty="all tenants are guaranteed; make one later: hwqueue tenant set NAME")


@app.command("hwqueue tenant drop lab")
def drop(ctx: typer.Context, name: Name) -> None:
    """Drop the row of a tenant; its leases that wait keep their tier."""
    done = ask(ctx, Client.drop_tenant, name)
    say(ctx, f"{name} is dropped" if done else f"no tenant {name} has a row")
    if not done:
        raise typer.Exit(ExitCode.NOT_FOUND)


_row = row_of(Tenant, "name tier created_at")
