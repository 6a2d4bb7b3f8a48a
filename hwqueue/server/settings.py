"""What the server is told: where the database is, where it listens, whom it lets in, its limits."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any, Literal

from limits import RateLimitItem, parse

from hwqueue.errors import ConfigError
from hwqueue.options import check_range

Auth = Literal["tokens", "proxy", "none"]

_HEADER = re.compile(r"[A-Za-z0-9-]{1,100}")
_SECRET = re.compile(r"[!-~]{16,1000}")
_SECOND, _HOUR = timedelta(seconds=1), timedelta(hours=1)
_RANGES: Mapping[str, tuple[Any, Any]] = {
    "port": (0, 65_535),
    "pool_size": (1, 1000),
    "read_pool_size": (1, 100),
    "max_body_bytes": (1000, 100_000_000),
    "max_single_body_bytes": (1000, 100_000_000),
    "bytes_per_second": (1000, 2**40),
    "max_streams": (0, 10_000),
    "max_streams_per_caller": (1, 10_000),
    "max_connections": (10, 100_000),
    "workers": (1, 100),
    **dict.fromkeys(("call_timeout", "read_timeout", "body_timeout", "head_timeout"), (_SECOND / 10, _HOUR)),
    "session_lifetime": (60 * _SECOND, 168 * _HOUR),
    "pool_timeout": (_SECOND / 100, 60 * _SECOND),
    "token_cache": (timedelta(0), 300 * _SECOND),
    "shutdown_timeout": (timedelta(0), _HOUR),
}
_PUBLIC_URL = re.compile(r"https?://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\])(:[0-9]{1,5})?/?")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """How the HTTP server runs.

    Attributes:
        dsn: Connection string of the database; its user needs `hwqueue_operator`, and
            `hwqueue_admin` to make queues. It may point at PgBouncer in transaction mode.
        host, port: Where it listens.
        auth: "tokens": only bearers of API tokens. "proxy": them, and whom a reverse proxy names in
            headers. "none": everybody is an admin. None: "none" on a loopback address, else
            "tokens".
        allowed_hosts: With "none", the names that callers may know the server by, without port;
            empty: any, but on a loopback address without `auth` only those of this machine.
        proxy_networks: With "proxy", the networks whose headers are believed, such as
            "10.0.0.0/8".
        proxy_user_header, proxy_role_header, proxy_tenant_header: What the proxy sets; it must
            remove them from what clients send. A user without a role is refused.
        proxy_tenant_required: Whether a user without a tenant is refused, too; `*` is all tenants.
            Else a user without a tenant sees all of them.
        proxy_secret: What the proxy sends in `proxy_secret_header` with every request, 16 to 1000
            printable characters: who has its address alone is not believed. None: the address is
            enough.
        public_url: How browsers reach the server, such as "https://queue.example".
        secure_cookies: Whether browsers send the dashboard's cookies over https alone. None: as
            `public_url` says; without one, unless it listens on a loopback address.
        session_dir: Folder of the dashboard's sessions, closed to others. None: a temporary one,
            so that sessions end with the server.
        session_lifetime: How long somebody stays signed in, 1 minute to 7 days.
        pool_size: Connections for calls that touch a few rows, 1 to 1000. A caller (a tenant, or
            who has none) has all but one, and half of them while others have requests.
        read_pool_size: Connections for lists and questions about all there is, 1 to 100; as above.
        call_timeout, read_timeout: How long one statement of either kind may take, 100 ms to 1 h.
        pool_timeout: How long a request waits for a connection, 10 ms to 1 minute.
        token_cache: How long a token that was let in is not looked up again, and so how long one
            that is revoked still works, 0 to 5 minutes.
        rate_limit: Requests of each caller, or where nobody is asked of each address, for each
            server process, such as "100/second"; None: no limit.
        max_body_bytes: Largest batch of leases, 1 kB to 100 MB.
        max_single_body_bytes: Largest request to any other address, 1 kB to 100 MB; a queue whose
            `max_params_bytes` is larger than usual needs more.
        bytes_per_second: What one caller, or where nobody is asked one address, may send to each
            server process in a second, one request at least; None: no limit.
        head_timeout: How long the head of a request may take to arrive, 100 ms to 1 h.
        max_connections: Most connections of callers to each server process, 10 to 100000.
        body_timeout: How long the body of a request may take to arrive, 100 ms to 1 h.
        max_streams: Most event streams at once for each server process, 0 to 10000.
        max_streams_per_caller: And of one caller, or where nobody is asked of one address, 1 to
            10000.
        cors_origins: Origins whose pages may call the API with tokens of theirs; none by default.
        shutdown_timeout: How long a stop waits for requests under way, 0 to 1 h.
        workers: Server processes, 1 to 100.
        json_logs: Whether log lines are JSON objects, those of the access log included.

    Raises:
        ConfigError: A value is out of range; the message names the field.
    """

    dsn: str = field(repr=False)
    host: str = "127.0.0.1"
    port: int = 8080
    auth: Auth | None = None
    allowed_hosts: tuple[str, ...] = ()
    proxy_networks: tuple[str, ...] = ()
    proxy_user_header: str = "X-Forwarded-User"
    proxy_role_header: str = "X-Forwarded-Role"
    proxy_tenant_header: str = "X-Forwarded-Tenant"
    proxy_tenant_required: bool = True
    proxy_secret: str | None = field(default=None, repr=False)
    proxy_secret_header: str = "X-Hwqueue-Proxy-Secret"
    public_url: str | None = None
    secure_cookies: bool | None = None
    session_dir: str | None = None
    session_lifetime: timedelta = timedelta(hours=12)
    pool_size: int = 8
    read_pool_size: int = 3
    call_timeout: timedelta = timedelta(seconds=10)
    read_timeout: timedelta = timedelta(seconds=5)
    pool_timeout: timedelta = timedelta(seconds=5)
    token_cache: timedelta = timedelta(seconds=5)
    rate_limit: str | None = "200/second"
    max_body_bytes: int = 8 * 2**20
    max_single_body_bytes: int = 1_200_000
    bytes_per_second: int | None = 16 * 2**20
    body_timeout: timedelta = timedelta(seconds=30)
    head_timeout: timedelta = timedelta(seconds=10)
    max_connections: int = 1000
    max_streams: int = 100
    max_streams_per_caller: int = 20
    cors_origins: tuple[str, ...] = ()
    shutdown_timeout: timedelta = timedelta(seconds=10)
    workers: int = 1
    json_logs: bool = False

    def __post_init__(self) -> None:
        for name, (low, high) in _RANGES.items():
            if getattr(self, name) is not None or name != "bytes_per_second":
                check_range(name, getattr(self, name), low, high)
        self._check_auth()
        if self.public_url is not None and not _PUBLIC_URL.fullmatch(self.public_url):
            raise ConfigError(
                f"public_url: {self.public_url!r} is not how browsers reach a server",
                hint="such as https://queue.example",
            )
        _ = self.networks, self.rate

    @property
    def effective_auth(self) -> Auth:
        """`auth`, or what the address that it listens on makes of None."""
        return self.auth or ("none" if self.is_loopback else "tokens")

    @property
    def has_https(self) -> bool:
        """Whether browsers reach the server over https, as far as it was told."""
        return self.public_url is not None and self.public_url.startswith("https://")

    @property
    def has_secure_cookies(self) -> bool:
        """`secure_cookies`, or what the address makes of None."""
        if self.secure_cookies is not None:
            return self.secure_cookies
        return self.has_https if self.public_url is not None else not self.is_loopback

    @property
    def is_loopback(self) -> bool:
        """Whether it listens for this machine alone."""
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    @property
    def networks(self) -> tuple[IPv4Network | IPv6Network, ...]:
        """`proxy_networks`, read. Raises: ConfigError."""
        try:
            return tuple(ip_network(text) for text in self.proxy_networks)
        except ValueError as error:
            raise ConfigError(f"proxy_networks: {error}") from error

    @property
    def rate(self) -> RateLimitItem | None:
        """`rate_limit`, read. Raises: ConfigError."""
        if self.rate_limit is None:
            return None
        try:
            return parse(self.rate_limit)
        except ValueError as error:
            raise ConfigError(
                f"rate_limit: {self.rate_limit!r} is not a number for a span",
                hint="such as 200/second or 5000/minute",
            ) from error

    def _check_auth(self) -> None:
        if self.auth not in (None, "tokens", "proxy", "none"):
            raise ConfigError(f"auth must be tokens, proxy or none, not {self.auth!r}")
        if self.auth == "proxy" and not self.proxy_networks:
            raise ConfigError(
                "auth is proxy, and proxy_networks says of no network that it is believed",
                hint="name the proxy's own address, such as 10.1.2.3/32",
            )
        headers = (
            self.proxy_user_header,
            self.proxy_role_header,
            self.proxy_tenant_header,
            self.proxy_secret_header,
        )
        if not all(map(_HEADER.fullmatch, headers)) or len(set(map(str.lower, headers))) < 4:
            raise ConfigError(f"the proxy's headers must be four names of headers, not {headers}")
        if self.proxy_secret is not None and not _SECRET.fullmatch(self.proxy_secret):
            raise ConfigError(
                "proxy_secret must be 16 to 1000 printable characters of ASCII without spaces",
                hint="make one: openssl rand -hex 32",
            )
        if "*" in self.cors_origins:
            raise ConfigError("cors_origins: name each origin; * would let in every page")
