"""hwqueue serve: the dashboard and the HTTP API."""

from typing import Annotated, Any

import typer

from hwqueue.cli.connect import connection_string
from hwqueue.cli.inputs import span
from hwqueue.cli.output import say
from hwqueue.errors import ConfigError

EXAMPLE = "hwqueue serve --host 0.0.0.0 --port 8080 --auth tokens"


def serve(
    ctx: typer.Context,
    *,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="Port to listen on.")] = 8080,
    auth: Annotated[
        str | None,
        typer.Option(
            help="tokens; or proxy: tokens, and whom a reverse proxy names in headers. "
            "Left out: nobody is asked on a loopback address, else tokens."
        ),
    ] = None,
    no_auth: Annotated[
        bool, typer.Option("--no-auth", help="Everybody who gets here is an admin.")
    ] = False,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            help="Where nobody is asked: a name that callers may know the server by; repeatable."
        ),
    ] = None,
    proxy_network: Annotated[
        list[str] | None,
        typer.Option(help="With --auth proxy: whose headers are believed; repeatable."),
    ] = None,
    proxy_user_header: Annotated[
        str, typer.Option(help="Where the proxy says who it is.")
    ] = "X-Forwarded-User",
    proxy_role_header: Annotated[
        str, typer.Option(help="And their role: producer, viewer, operator, admin.")
    ] = "X-Forwarded-Role",
    proxy_tenant_header: Annotated[
        str, typer.Option(help="And their only tenant, if they have one.")
    ] = "X-Forwarded-Tenant",
    workers: Annotated[int, typer.Option(min=1, max=100, help="Server processes.")] = 1,
    pool_size: Annotated[
        int, typer.Option(min=1, max=1000, help="Connections of each process for quick calls.")
    ] = 8,
    read_pool_size: Annotated[
        int, typer.Option(min=1, max=100, help="And for lists and statistics.")
    ] = 3,
    call_timeout: Annotated[
        str, typer.Option(help="Longest time in the database for a quick call.")
    ] = "10s",
    read_timeout: Annotated[str, typer.Option(help="And for a list or statistics.")] = "5s",
    rate_limit: Annotated[
        str, typer.Option(help="Requests of each token, for each process; or none.")
    ] = "200/second",
    max_streams: Annotated[
        int, typer.Option(min=0, max=10_000, help="Event streams at once, for each process.")
    ] = 100,
    max_body: Annotated[int, typer.Option(help="Largest request, bytes.")] = 8 * 2**20,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(help="Origin whose pages may call with tokens of theirs; repeatable."),
    ] = None,
    shutdown_timeout: Annotated[
        str, typer.Option(help="How long a stop waits for requests under way.")
    ] = "10s",
    json_logs: Annotated[bool, typer.Option("--json-logs", help="Write the log as JSON.")] = False,
) -> None:
    """Serve the dashboard and the HTTP API until SIGTERM or Ctrl-C.

    On a loopback address, as by default, everybody on this machine may do everything; elsewhere
    callers need a token: `hwqueue token create`.
    """
    try:
        from hwqueue.server import ServerSettings, run  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"the server needs {error.name}, which is not installed",
            hint="pip install 'hwqueue[serve]'",
        ) from error
    if no_auth and auth is not None:
        raise ConfigError("--auth and --no-auth exclude each other")
    options: dict[str, Any] = {
        "host": host,
        "port": port,
        "auth": "none" if no_auth else auth,
        "allowed_hosts": tuple(allowed_host or ()),
        "proxy_networks": tuple(proxy_network or ()),
        "proxy_user_header": proxy_user_header,
        "proxy_role_header": proxy_role_header,
        "proxy_tenant_header": proxy_tenant_header,
        "workers": workers,
        "pool_size": pool_size,
        "read_pool_size": read_pool_size,
        "call_timeout": span(call_timeout, "--call-timeout"),
        "read_timeout": span(read_timeout, "--read-timeout"),
        "rate_limit": None if rate_limit == "none" else rate_limit,
        "max_body_bytes": max_body,
        "max_streams": max_streams,
        "cors_origins": tuple(cors_origin or ()),
        "shutdown_timeout": span(shutdown_timeout, "--shutdown-timeout"),
        "json_logs": json_logs,
    }
    settings = ServerSettings(dsn=connection_string(ctx), **options)
    if settings.effective_auth == "none":
        say(ctx, "nobody is asked who they are: whoever gets here is an admin")
    say(ctx, f"http://{host}:{port}/ is the dashboard")
    say(ctx, f"http://{host}:{port}/api/v1/openapi.json describes the API")
    run(settings)
