"""hwqueue serve: the dashboard and the HTTP API."""

from pathlib import Path
from typing import Annotated, Any

import typer

from hwqueue.cli.connect import connection_string
from hwqueue.cli.extra import required
from hwqueue.cli.inputs import secret_of, span
from hwqueue.cli.listening import check_address
from hwqueue.cli.output import ExitCode, say
from hwqueue.errors import ConfigError
from hwqueue.stopping import until_told

EXAMPLE = "hwqueue serve --host 0.0.0.0 --port 8080 --auth tokens"

# Where it listens, and whom it lets in.
Host = Annotated[str, typer.Option(help="Address to listen on.")]
Port = Annotated[int, typer.Option(min=0, max=65_535, help="Port to listen on.")]
Auth = Annotated[
    str | None,
    typer.Option(
        help="tokens; or proxy: tokens, and whom a reverse proxy names in headers. "
        "Left out: nobody is asked on a loopback address, else tokens."
    ),
]
NoAuth = Annotated[bool, typer.Option("--no-auth", help="Everybody who gets here is an admin.")]
AllowedHosts = Annotated[
    list[str] | None,
    typer.Option(help="Where nobody is asked: a name that callers may know the server by; repeatable."),
]
ProxyNetworks = Annotated[
    list[str] | None,
    typer.Option(help="With --auth proxy: whose headers are believed; repeatable."),
]
ProxyUserHeader = Annotated[str, typer.Option(help="Where the proxy says who it is.")]
ProxyRoleHeader = Annotated[str, typer.Option(help="And their role: producer, viewer, operator, admin.")]
ProxyTenantHeader = Annotated[str, typer.Option(help="And their only tenant, or * for all.")]
ProxyTenantRequired = Annotated[
    bool,
    typer.Option(
        "--proxy-tenant-required/--no-proxy-tenant-required",
        help="Refuse users of whom the proxy says no tenant; else they see all tenants.",
    ),
]
ProxySecretFile = Annotated[
    Path | None,
    typer.Option(
        help="File with a secret that the proxy must send, too: its address alone is not believed.",
        exists=True,
        dir_okay=False,
    ),
]
ProxySecretHeader = Annotated[str, typer.Option(help="Where the proxy sends the secret.")]
PublicUrl = Annotated[
    str | None,
    typer.Option(
        help="How browsers reach the server, such as https://queue.example: with https they are "
        "told to come back over https alone."
    ),
]
SecureCookies = Annotated[
    bool | None,
    typer.Option(
        "--secure-cookies/--no-secure-cookies",
        help="Whether browsers send the dashboard's cookies over https alone. Left out: as the "
        "public URL says; without one, yes, unless it listens on a loopback address.",
    ),
]
SessionDir = Annotated[
    Path | None,
    typer.Option(
        help="Folder, closed to others, that keeps who is signed in over a restart.",
        file_okay=False,
    ),
]
SessionLifetime = Annotated[str, typer.Option(help="How long somebody stays signed in.")]
CorsOrigins = Annotated[
    list[str] | None,
    typer.Option(help="Origin whose pages may call with tokens of theirs; repeatable."),
]

# How much of everything.
Workers = Annotated[int, typer.Option(min=1, max=100, help="Server processes.")]
PoolSize = Annotated[int, typer.Option(min=1, max=1000, help="Connections of each process for quick calls.")]
ReadPoolSize = Annotated[int, typer.Option(min=1, max=100, help="And for lists and statistics.")]
CallTimeout = Annotated[str, typer.Option(help="Longest time in the database for a quick call.")]
ReadTimeout = Annotated[str, typer.Option(help="And for a list or statistics.")]
RateLimit = Annotated[
    str,
    typer.Option(
        help="Requests of each caller (a tenant, else a token or address), for each process, or none."
    ),
]
MaxStreams = Annotated[int, typer.Option(min=0, max=10_000, help="Event streams at once, for each process.")]
MaxStreamsPerCaller = Annotated[
    int,
    typer.Option(
        min=1,
        max=10_000,
        help="And of each caller: a tenant, else a token; where nobody is asked, an address.",
    ),
]
MaxBody = Annotated[int, typer.Option(help="Largest batch of leases, bytes.")]
MaxSingleBody = Annotated[int, typer.Option(help="Largest request of any other kind, bytes.")]
MaxBytesPerSecond = Annotated[
    int,
    typer.Option(
        min=0,
        help="What each caller (a tenant, else a token or address) may send to each process in a "
        "second, bytes; 0: no limit.",
    ),
]
MaxConnections = Annotated[
    int, typer.Option(min=10, max=100_000, help="Connections of callers, for each process.")
]
HeadTimeout = Annotated[str, typer.Option(help="How long the head of a request may take to arrive.")]
BodyTimeout = Annotated[str, typer.Option(help="How long a request may take to arrive.")]
ShutdownTimeout = Annotated[str, typer.Option(help="How long a stop waits for requests under way.")]
JsonLogs = Annotated[bool, typer.Option("--json-logs", help="Write the log as JSON.")]


@until_told()
def serve(
    ctx: typer.Context,
    *,
    host: Host = "127.0.0.1",
    port: Port = 8080,
    auth: Auth = None,
    no_auth: NoAuth = False,
    allowed_host: AllowedHosts = None,
    proxy_network: ProxyNetworks = None,
    proxy_user_header: ProxyUserHeader = "X-Forwarded-User",
    proxy_role_header: ProxyRoleHeader = "X-Forwarded-Role",
    proxy_tenant_header: ProxyTenantHeader = "X-Forwarded-Tenant",
    proxy_tenant_required: ProxyTenantRequired = True,
    proxy_secret_file: ProxySecretFile = None,
    proxy_secret_header: ProxySecretHeader = "X-Hwqueue-Proxy-Secret",
    public_url: PublicUrl = None,
    secure_cookies: SecureCookies = None,
    session_dir: SessionDir = None,
    session_lifetime: SessionLifetime = "12h",
    workers: Workers = 1,
    pool_size: PoolSize = 8,
    read_pool_size: ReadPoolSize = 3,
    call_timeout: CallTimeout = "10s",
    read_timeout: ReadTimeout = "5s",
    rate_limit: RateLimit = "200/second",
    max_streams: MaxStreams = 100,
    max_streams_per_caller: MaxStreamsPerCaller = 20,
    max_body: MaxBody = 8 * 2**20,
    max_single_body: MaxSingleBody = 1_200_000,
    max_bytes_per_second: MaxBytesPerSecond = 16 * 2**20,
    max_connections: MaxConnections = 1000,
    head_timeout: HeadTimeout = "10s",
    body_timeout: BodyTimeout = "30s",
    cors_origin: CorsOrigins = None,
    shutdown_timeout: ShutdownTimeout = "10s",
    json_logs: JsonLogs = False,
) -> None:
    """Serve the dashboard and the HTTP API until SIGTERM or Ctrl-C.

    On a loopback address, as by default, everybody on this machine may do everything; elsewhere
    callers need a token: `hwqueue token create`.
    """
    if no_auth and auth is not None:
        raise ConfigError("--auth and --no-auth exclude each other")
    _run(
        ctx,
        host=host,
        port=port,
        auth="none" if no_auth else auth,
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


def _run(ctx: typer.Context, **options: Any) -> None:
    """Serve with these settings. Raises: ConfigError."""
    with required("serve"):
        from hwqueue.serve import run  # noqa: PLC0415
        from hwqueue.server import ServerSettings  # noqa: PLC0415
    settings = ServerSettings(dsn=connection_string(ctx), **options)
    check_address(settings.host, settings.port)
    if settings.effective_auth == "none":
        say(ctx, "nobody is asked who they are: everybody who gets here is an admin")
    say(ctx, f"http://{settings.host}:{settings.port}/ is the dashboard")
    say(ctx, f"http://{settings.host}:{settings.port}/api/v1/openapi.json describes the API")
    try:
        run(settings)
    except SystemExit as left:  # of uvicorn, which has said why; its codes are not ours
        raise typer.Exit(ExitCode.FAILED if left.code else ExitCode.OK) from left
