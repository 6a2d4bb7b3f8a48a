"""hwqueue db: the embedded server, and the schema of any database."""

from datetime import timedelta
from typing import Annotated

import psycopg
import typer
from typer import Option

from hwqueue import schema  # what upgrades is imported when it is first asked for
from hwqueue.cli.connect import embedded_server, locate, named_database
from hwqueue.cli.groups import Commands
from hwqueue.cli.inputs import span
from hwqueue.cli.needed import required
from hwqueue.cli.options import options_of
from hwqueue.cli.output import ExitCode, fields_of, say, show_items, show_one, to_json
from hwqueue.cli.tables import row_of
from hwqueue.client import Client
from hwqueue.connections import in_utf8
from hwqueue.errors import ConfigError, SchemaTooOld
from hwqueue.schema import CheckReport, read_version
from hwqueue.schema import check as check_schema
from hwqueue.schema.drop import drop as drop_schema
from hwqueue.schema.state import unknown_revision

app = Commands("The embedded server, and the schema of any database.")

NoRoles = Annotated[bool, Option("--no-roles", help="Leave out the roles and everything granted to them.")]

LockTimeout = Annotated[
    str, Option("--lock-timeout", help="How long to wait for another session that is at it, such as 30s.")
]


@app.command("hwqueue db start --port 54320")
def start(
    ctx: typer.Context,
    port: Annotated[
        int | None, Option(min=1, max=65535, help="TCP port on 127.0.0.1; the last one if left out.")
    ] = None,
) -> None:
    """Start the embedded server, setting it up the first time."""
    _refuse_named_database(ctx)
    show_one(ctx, vars(embedded_server().start(port)))


@app.command("hwqueue db stop")
def stop(ctx: typer.Context) -> None:
    """Stop the embedded server; its data is kept."""
    _refuse_named_database(ctx)
    stopped = embedded_server().stop()
    if options_of(ctx).json:
        show_one(ctx, {"stopped": stopped})
    say(ctx, "stopped" if stopped else "it was not running")


@app.command("hwqueue db status --json")
def status(ctx: typer.Context) -> None:
    """Show which database is used and what is installed there; starts nothing."""
    named = named_database(ctx)
    embedded = None if named else embedded_server().status()
    facts: dict[str, object] = {"server": f"named by {named.by}" if named else "embedded"}
    if embedded:
        facts |= vars(embedded)
    dsn = named.dsn if named else embedded_server().url() if embedded and embedded.running else None
    if dsn is not None:
        with psycopg.connect(in_utf8(dsn)) as connection:
            installed = read_version(connection)
            facts["database"] = connection.info.dbname
            facts["postgres"] = connection.info.parameter_status("server_version")
        facts["schema"] = installed.package_version if installed else None
        facts["revision"] = installed.revision if installed else None
    show_one(ctx, facts)


@app.command('psql "$(hwqueue db url)"')
def url(ctx: typer.Context) -> None:
    """Print the connection string, password included; starts the embedded server if it is used."""
    _print_text(ctx, "url", locate(ctx))


@app.command("hwqueue db upgrade --dsn postgresql://admin@db.example/app")
def upgrade(
    ctx: typer.Context,
    no_roles: NoRoles = False,
    lock_timeout: LockTimeout = "5m",
    from_owner: Annotated[
        str | None, Option(help="Take over the schema of this user, and run what is in it.")
    ] = None,
) -> None:
    """Install the schema, or bring it up to date; all or nothing, and safe to repeat."""
    with required("schema"):
        install = schema.upgrade
    result = install(
        locate(ctx),
        roles=not no_roles,
        patience=span(lock_timeout, "--lock-timeout") or timedelta(0),
        on_wait=lambda message: say(ctx, message),
        from_owner=from_owner,
    )
    show_one(ctx, vars(result))
    if result.note:
        say(ctx, f"note: {result.note}")
    for warning in result.warnings:
        say(ctx, f"warning: {warning}")


@app.command("hwqueue db drop --dsn postgresql://admin@db.example/app")
def drop(
    ctx: typer.Context,
    yes: Annotated[bool, Option("--yes", help="Do not ask.")] = False,
    lock_timeout: LockTimeout = "5m",
) -> None:
    """Take the schema out of the database, with all leases, nodes and tokens; asks first.

    Views of your own that are built on it go, too. Roles stay: they belong to the whole server.
    """
    patience = span(lock_timeout, "--lock-timeout") or timedelta(0)
    dsn = locate(ctx)
    with psycopg.connect(in_utf8(dsn)) as connection:
        name, host = connection.info.dbname, connection.info.host
    if not yes:
        question = f"Everything of hwqueue in database {name} at {host} is lost. Its name, to go on"
        if typer.prompt(question, err=True, default="", show_default=False) != name:
            raise ConfigError("that is not its name: nothing is dropped")
    roles = drop_schema(dsn, patience=patience, on_wait=lambda message: say(ctx, message))
    show_one(ctx, {"dropped": "hwqueue", "database": name, "roles_left": list(roles)})
    if roles:
        say(ctx, f"if no other database of the server has the queue: drop role {', '.join(roles)}")


@app.command("hwqueue db check || hwqueue db upgrade")
def check(
    ctx: typer.Context,
    from_owner: Annotated[
        str | None, Option(help="Read the schema of this user, and run what is in it.")
    ] = None,
) -> None:
    """Compare the schema with what this version installs; exits with 4 when it differs."""
    report = check_schema(locate(ctx), from_owner=from_owner)
    if report.installed is None:
        raise SchemaTooOld("the database has no hwqueue schema", hint="install it: hwqueue db upgrade")
    if options_of(ctx).json:
        facts = row_of(CheckReport, "ok current known expected_revision installed drifts")
        show_one(ctx, facts(report))
    elif not report.known:
        raise unknown_revision(report.installed)
    else:
        show_items(ctx, report.drifts, fields_of, empty="everything is as installed")
    if not report.current:
        say(ctx, "an upgrade is due: hwqueue db upgrade")
    if not report.ok:
        raise typer.Exit(ExitCode.SCHEMA)


@app.command("hwqueue db verify --json")
def verify(ctx: typer.Context) -> None:
    """Count again what must hold at every instant; exits with 4 when something does not.

    One entry for each open lease, what nodes have in use, capacity, what leases ask about others.
    """
    with psycopg.connect(in_utf8(locate(ctx))) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        broken = Client.on(connection).verify_invariants()
    show_items(ctx, broken, fields_of, empty="everything holds")
    if broken:
        raise typer.Exit(ExitCode.SCHEMA)


@app.command("hwqueue db sql | psql -1 -v ON_ERROR_STOP=1 app")
def sql(ctx: typer.Context, no_roles: NoRoles = False) -> None:
    """Print the whole installation as one script for psql -1; needs no database.

    It is for a database that has none yet, and stops in any other.
    """
    with required("schema"):
        script = schema.install_script
    _print_text(ctx, "sql", script(roles=not no_roles))


def _print_text(ctx: typer.Context, name: str, text: str) -> None:
    """Print a text as it is, for a shell to take; with --json as an object."""
    typer.echo(to_json({name: text}) if options_of(ctx).json else text)


def _refuse_named_database(ctx: typer.Context) -> None:
    """Only the embedded server is ours to start and stop."""
    if named := named_database(ctx):
        raise ConfigError(
            f"{named.by} names a server that hwqueue does not manage",
            hint=f"leave {named.by} out to use the embedded server",
        )
