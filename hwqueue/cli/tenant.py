"""hwqueue tenant: whose leases run first, what a tenant may have, which logins call for it."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

import typer
from typer import Argument, Option

from hwqueue.cli.connect import ask, open_client
from hwqueue.cli.groups import Commands
from hwqueue.cli.inputs import identifier, rate_of
from hwqueue.cli.options import options_of
from hwqueue.cli.output import ExitCode, fields_of, say, show_items, show_one
from hwqueue.cli.tables import row_of
from hwqueue.client import Client
from hwqueue.text import percent
from hwqueue.types import PreemptedClaim, Tenant, TenantUsage

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
    spawns: Annotated[str | None, Option(help="How many it may spawn in which span: 600/1m.")] = None,
    shared_with: Annotated[
        list[str] | None,
        Option(
            help="A tenant whose leases may ask where its leases run; repeatable, in place of those before."
        ),
    ] = None,
) -> None:
    """Change what a tenant may have; "none" takes a bound away."""
    numbers = {"weight": weight, "slots": slots, "pending": pending, "classes": classes}
    changes: dict[str, Any] = {key: _number(text, key) for key, text in numbers.items() if text is not None}
    if spawns is not None:
        rate = None if spawns == "none" else rate_of(spawns, "--spawns")
        changes["spawns"] = rate and rate | {"per": rate["per"].total_seconds()}
    if shared_with is not None:
        changes["shared_with"] = [] if shared_with == ["none"] else shared_with
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
    """Show what a tenant uses beside what it may, its share of what started, and its logins."""
    with open_client(ctx) as client:
        found = client.tenant_usage(name=name, limit=1)
        rows = client.list_tenants(name=name)
    if not found:
        say(ctx, f"no tenant {name} has a row, a login or leases")
        raise typer.Exit(ExitCode.NOT_FOUND)
    row = rows[0] if rows else None
    if options_of(ctx).json:
        show_one(ctx, fields_of(found[0]) | ({} if row is None else fields_of(row)))
        return
    logins = [] if row is None else [{"login": login, "rights": may} for login, may in row.logins.items()]
    show_one(ctx, _usage(found[0]) | {"created_at": row and row.created_at, "logins": logins})


@app.command("hwqueue tenant usage --limit 20")
def usage(
    ctx: typer.Context,
    limit: Annotated[int, Option(help="Most to show.", min=1, max=10_000)] = 50,
) -> None:
    """List what tenants use beside what they may, the busiest first."""
    show_items(ctx, ask(ctx, Client.tenant_usage, limit=limit), _usage, empty="no tenant has anything")


@app.command("hwqueue tenant preemptions --tenant lab")
def preemptions(
    ctx: typer.Context,
    *,
    tenant: Annotated[str | None, Option(help="Whose leases were asked to stop, or for whom.")] = None,
    lease: Annotated[str | None, Option(help="This lease, when it was asked to stop.")] = None,
    limit: Annotated[int, Option(help="Most to show.", min=1, max=10_000)] = 50,
) -> None:
    """List which leases were asked to stop for leases of earlier tiers, the newest first."""
    lease_id = None if lease is None else identifier(lease, "--lease")
    found = ask(ctx, Client.list_preemptions, lease_id=lease_id, tenant=tenant, limit=limit)
    show_items(ctx, found, _preempted, empty="nothing was preempted lately")


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


def _logins(tenant: Tenant) -> list[str]:
    return [f"{login} ({', '.join(rights)})" for login, rights in tenant.logins.items()]


def _of(count: str, bound: str) -> Callable[[TenantUsage], object]:
    """How many there are; with a bound, of how many."""

    def cell(one: TenantUsage) -> object:
        number = getattr(one, count)
        return f"{number} of {one.spec[bound]}" if bound in one.spec else number

    return cell


_row = row_of(Tenant, "name tier quotas created_at logins", quotas=_quotas, logins=_logins)
_usage = row_of(
    TenantUsage,
    "tenant tier running pending parked classes started share due",
    running=_of("running", "slots"),
    pending=_of("pending", "pending"),
    classes=_of("classes", "classes"),
    share=lambda one: None if one.share is None else percent(one.share, 1),
    due=lambda one: None if one.due is None else percent(one.due, 1),
)
_preempted = row_of(PreemptedClaim, "lease_id tenant tier for_lease for_gang for_tenant for_tier at stop_by")
