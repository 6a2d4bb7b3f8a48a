"""hwqueue tenant: whose leases run first, and which logins call for them."""

from typing import Annotated, Literal

import typer
from typer import Argument, Option

from hwqueue.cli.connect import ask
from hwqueue.cli.groups import Commands
from hwqueue.cli.output import ExitCode, say, show_item, show_items, show_one
from hwqueue.cli.tables import row_of
from hwqueue.client import Client
from hwqueue.types import Tenant

app = Commands("Whose leases run first, and which logins call for them.")

Name = Annotated[str, Argument(help="Name of the tenant; *: all without a row.")]
Login = Annotated[str, Argument(help="A login of the database, with the role hwqueue_tenants.")]


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
    """List the tenants that have a row or a login."""
    found = ask(ctx, Client.list_tenants, after=after, limit=limit)
    show_items(ctx, found, _row, empty="all tenants are guaranteed; make one later: hwqueue tenant set NAME")


@app.command("hwqueue tenant drop lab")
def drop(ctx: typer.Context, name: Name) -> None:
    """Drop the row of a tenant and its logins; its leases that wait keep their tier."""
    done = ask(ctx, Client.drop_tenant, name)
    say(ctx, f"{name} is dropped" if done else f"no tenant {name} has a row or a login")
    if not done:
        raise typer.Exit(ExitCode.NOT_FOUND)


@app.command("hwqueue tenant show lab")
def show(ctx: typer.Context, name: Name) -> None:
    """Show a tenant and the logins that are bound to it."""
    found = ask(ctx, Client.list_tenants, name=name)
    if not found:
        say(ctx, f"no tenant {name} has a row or a login")
        raise typer.Exit(ExitCode.NOT_FOUND)
    show_item(ctx, found[0], _facts)


@app.command("hwqueue tenant grant app_lab lab --right spawn --right operate")
def grant(
    ctx: typer.Context,
    login: Login,
    name: Name,
    *,
    right: Annotated[
        list[str] | None, Option(help="spawn or operate, in the place of what it may do; repeatable.")
    ] = None,
) -> None:
    """Let a login that is bound to tenants call for this one."""
    rights = ask(ctx, Client.grant_tenant, login, name, right or ())
    show_one(ctx, {"name": name, "login": login, "rights": rights})


@app.command("hwqueue tenant revoke app_lab lab")
def revoke(ctx: typer.Context, login: Login, name: Name) -> None:
    """Take a tenant from a login; one that has none left sees and does nothing."""
    done = ask(ctx, Client.revoke_tenant, login, name)
    say(ctx, f"{login} has lost {name}" if done else f"{login} has no tenant {name}")
    if not done:
        raise typer.Exit(ExitCode.NOT_FOUND)


_row = row_of(Tenant, "name tier created_at logins")


def _facts(tenant: Tenant) -> dict[str, object]:
    logins = [{"login": login, "rights": list(rights)} for login, rights in tenant.logins.items()]
    return {"name": tenant.name, "tier": tenant.tier, "created_at": tenant.created_at, "logins": logins}
