"""hwqueue serve: the dashboard and the HTTP API."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from hwqueue.cli.connect import connection_string
from hwqueue.cli.inputs import secret_of, span
from hwqueue.cli.needed import check_address, required
from hwqueue.cli.output import ExitCode, say
from hwqueue.errors import ConfigError
from hwqueue.stopping import until_told

EXAMPLE = "hwqueue serve --host 0.0.0.0 --port 8080 --auth tokens"


@until_told()
def serve(
    ctx: typer.Context,
    *,
    # where it listens, and whom it lets in
    host: Annotated[str, Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65_535, help="Port to listen on.")] = 8080,
    auth: Annotated[
        str | None,
        Option(
            help="tokens; or proxy: tokens, and whom a reverse proxy names in headers. "
            "Left out: nobody is asked on a loopback address, else tokens."
        ),
    ] = None,
    no_auth: Annotated[bool, Option("--no-auth", help="Everybody who gets here is an admin.")] = False,
    allowed_host: Annotated[
        list[str] | None,
        Option(help="Where nobody is asked: a name that callers may know the server by; repeatable."),
    ] = None,
    proxy_network: Annotated[
        list[str] | None, Option(help="With --auth proxy: whose headers are believed; repeatable.")
    ] = None,
    proxy_user_header: Annotated[str, Option(help="Where the proxy says who it is.")] = "X-Forwarded-User",
    proxy_role_header: Annotated[
        str, Option(help="And their role: producer, viewer, operator, admin.")
    ] = "X-Forwarded-Role",
    proxy_tenant_header: Annotated[
        str, Option(help="And their only tenant, or * for all.")
    ] = "X-Forwarded-Tenant",
    proxy_tenant_required: Annotated[
        bool,
        Option(
            "--proxy-tenant-required/--no-proxy-tenant-required",
            help="Refuse users of whom the proxy says no tenant; else they see all tenants.",
        ),
    ] = True,
    proxy_secret_file: Annotated[
        Path | None,
        Option(
            help="File with a secret that the proxy must send, too: its address alone is not believed.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    proxy_secret_header: Annotated[
        str, Option(help="Where the proxy sends the secret.")
    ] = "X-Hwqueue-Proxy-Secret",
    public_url: Annotated[
        str | None,
        Option(
            help="How browsers reach the server, such as https://queue.example: with https they are "
            "told to come back over https alone."
        ),
    ] = None,
    secure_cookies: Annotated[
        bool | None,
        Option(
            "--secure-cookies/--no-secure-cookies",
            help="Whether browsers send the dashboard's cookies over https alone. Left out: as the "
            "public URL says; without one, yes, unless it listens on a loopback address.",
        ),
    ] = None,
    session_dir: Annotated[
        Path | None,
        Option(help="Folder, closed to others, that keeps who is signed in over a restart.", file_okay=False),
    ] = None,
    session_lifetime: Annotated[str, Option(help="How long somebody stays signed in.")] = "12h",
    # how much of everything
    workers: Annotated[int, Option(min=1, max=100, help="Server processes.")] = 1,
    pool_size: Annotated[
        int, Option(min=1, max=1000, help="Connections of each process for quick calls.")
    ] = 8,
    read_pool_size: Annotated[int, Option(min=1, max=100, help="And for lists and statistics.")] = 3,
    call_timeout: Annotated[str, Option(help="Longest time in the database for a quick call.")] = "10s",
    read_timeout: Annotated[str, Option(help="And for a list or statistics.")] = "5s",
    rate_limit: Annotated[
        str,
        Option(
            help="Requests of each caller (a tenant, else a token or address), for each process, or none."
        ),
    ] = "200/second",
    max_streams: Annotated[
        int, Option(min=0, max=10_000, help="Event streams at once, for each process.")
    ] = 100,
    max_streams_per_caller: Annotated[
        int,
        Option(
            min=1,
            max=10_000,
            help="And of each caller: a tenant, else a token; where nobody is asked, an address.",
        ),
    ] = 20,
    max_body: Annotated[int, Option(help="Largest batch of leases, bytes.")] = 8 * 2**20,
    max_single_body: Annotated[int, Option(help="Largest request of any other kind, bytes.")] = 1_200_000,
    max_bytes_per_second: Annotated[
        int,
        Option(
            min=0,
            help="What each caller (a tenant, else a token or address) may send to each process in a "
            "second, bytes; 0: no limit.",
        ),
    ] = 16 * 2**20,
    max_connections: Annotated[
        int, Option(min=10, max=100_000, help="Connections of callers, for each process.")
    ] = 1000,
    head_timeout: Annotated[str, Option(help="How long the head of a request may take to arrive.")] = "10s",
    body_timeout: Annotated[str, Option(help="How long a request may take to arrive.")] = "30s",
    cors_origin: Annotated[
        list[str] | None, Option(help="Origin whose pages may call with tokens of theirs; repeatable.")
    ] = None,
    shutdown_timeout: Annotated[str, Option(help="How long a stop waits for requests under way.")] = "10s",
    json_logs: Annotated[bool, Option("--json-logs", help="Write the log as JSON.")] = False,
) -> None:
    """Serve the dashboard and the HTTP API until SIGTERM or Ctrl-C.

    On a loopback address, as by default, everybody on this machine may do everything; elsewhere
    callers need a token: `hwqueue token create`.
    """
    if no_auth and auth is not None:
        raise ConfigError("--auth and --no-auth exclude each other")
    asked: Any = "none" if no_auth else auth  # the settings refuse what they do not know
    with required("serve"):
        from hwqueue.serve import run  # noqa: PLC0415
        from hwqueue.server import ServerSettings  # noqa: PLC0415
    settings = ServerSettings(
        dsn=connection_string(ctx),
        host=host,
        port=port,
        auth=asked,
        allowed_hosts=tuple(allowed_host or ()),
        proxy_networks=tuple(proxy_network or ()),
        proxy_user_header=proxy_user_header,
        proxy_role_header=proxy_role_header,
        proxy_tenant_header=proxy_tenant_header,
        proxy_tenant_required=proxy_tenant_required,
        proxy_secret=secret_of(proxy_secret_file, "--proxy-secret-file"),
        proxy_secret_header=proxy_secret_header,
        public_url=public_url,
        secure_cookies=secure_cookies,
        session_dir=None if session_dir is None else str(session_dir.absolute()),
        session_lifetime=span(session_lifetime, "--session-lifetime"),
        workers=workers,
        pool_size=pool_size,
        read_pool_size=read_pool_size,
        call_timeout=span(call_timeout, "--call-timeout"),
        read_timeout=span(read_timeout, "--read-timeout"),
        rate_limit=None if rate_limit == "none" else rate_limit,
        max_streams=max_streams,
        max_streams_per_caller=max_streams_per_caller,
        max_body_bytes=max_body,
        max_single_body_bytes=max_single_body,
        bytes_per_second=max_bytes_per_second or None,
        max_connections=max_connections,
        head_timeout=span(head_timeout, "--head-timeout"),
        body_timeout=span(body_timeout, "--body-timeout"),
        cors_origins=tuple(cors_origin or ()),
        shutdown_timeout=span(shutdown_timeout, "--shutdown-timeout"),
        json_logs=json_logs,
    )
    check_address(settings.host, settings.port)
    if settings.effective_auth == "none":
        say(ctx, "nobody is asked who they are: everybody who gets here is an admin")
    say(ctx, f"http://{settings.host}:{settings.port}/ is the dashboard")
    say(ctx, f"http://{settings.host}:{settings.port}/api/v1/openapi.json describes the API")
    try:
        run(settings)
    except SystemExit as left:  # of uvicorn, which has said why; its codes are not ours
        raise typer.Exit(ExitCode.FAILED if left.code else ExitCode.OK) from left
