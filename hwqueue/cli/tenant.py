"""hwqueue tenant: whose leases run first, what a tenant may have, which logins call for it."""

from typing import Annotated, Any, Literal

import typer
from typer import Argument, Option

from hwqueue.cli.connect import ask
from hwqueue.cli.groups import Commands
from hwqueue.cli.output import ExitCode, say, show_item, show_items, show_one
from hwqueue.cli.tables import row_of
from hwqueue.client import Client
from hwqueue.types import Tenant

app = Commands("Whose leases run first, how much of what a tenant may have, and which logins call for it.")

Name = Annotated[str, Argument(help="Name of the tenant.")]
NameOrAll = Annotated[str, Argument(help="Name of the tenant; *: all without a row.")]
Login = Annotated[str, Argument(help="A login of the database, with the role hwqueue_tenants.")]


@app.command("hwqueue tenant set lab --tier scavenger --slots 40 --pending none")
def set_(
    ctx: typer.Context,
    name: NameOrAll,
    *,
    tier: Annotated[
        Literal["guaranteed", "best_effort", "scavenger"] | None,
        Option(help="Of the leases that it spawns from now on; an earlier tier runs first."),
    ] = None,
    weight: Annotated[str | None, Option(help="Its share in fair limits by tenant.")] = None,
    slots: Annotated[str | None, Option(help="How many of its leases may run at once.")] = None,
    pending: Annotated[str | None, Option(help="How many of its leases may wait.")] = None,
    classes: Annotated[str | None, Option(help="How many placement classes it may have.")] = None,
) -> None:
    """Change what a tenant may have; "none" takes a number away."""
    numbers = {"weight": weight, "slots": slots, "pending": pending, "classes": classes}
    changes: dict[str, Any] = {key: _number(text, key) for key, text in numbers.items() if text is not None}
    if tier is not None:
        changes["tier"] = tier
    show_one(ctx, {"name": name, **ask(ctx, Client.set_tenant, name, changes)})


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
def drop(ctx: typer.Context, name: NameOrAll) -> None:
    """Drop the row of a tenant and its logins; its leases that wait keep their tier."""
    done = ask(ctx, Client.drop_tenant, name)
    say(ctx, f"{name} is dropped" if done else f"no tenant {name} has a row or a login")
    if not done:
        raise typer.Exit(ExitCode.NOT_FOUND)


@app.command("hwqueue tenant show lab")
def show(ctx: typer.Context, name: NameOrAll) -> None:
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


def _number(text: str, key: str) -> Any:
    if text == "none":
        return None
    try:
        return float(text) if key == "weight" else int(text)
    except ValueError:
        raise typer.BadParameter("give a number, or none", param_hint=f"--{key}") from None


def _quotas(tenant: Tenant) -> str:
    return ", ".join(f"{key} {value}" for key, value in tenant.spec.items() if key != "tier")


_row = row_of(Tenant, "name tier quotas created_at logins", quotas=_quotas)


def _facts(tenant: Tenant) -> dict[str, object]:
    logins = [{"login": login, "rights": list(rights)} for login, rights in tenant.logins.items()]
    return {
        "name": tenant.name,
        "tier": tenant.tier,
        "quotas": _quotas(tenant),
        "created_at": tenant.created_at,
        "logins": logins,
    }
