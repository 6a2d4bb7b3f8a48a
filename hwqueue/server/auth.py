"""Authentication: bearer tokens, the headers of a reverse proxy, or nobody is asked.

Fail closed: what is missing, doubled or unknown lets nobody in.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Protocol

from psycopg_pool import PoolTimeout
from starlette.requests import HTTPConnection

from hwqueue.server.pools import Pools
from hwqueue.server.problems import HTTPProblem
from hwqueue.server.rate_limits import RateLimits
from hwqueue.server.roles import Principal, Role
from hwqueue.server.settings import ServerSettings
from hwqueue.single_flight import SingleFlight

_FOREIGN = "pages of other sites may not call this server"
_FOREIGN_HINT = "call it with a token from a program, or name the site with --cors-origin"
# What proxies add; one that adds nothing cannot be told from a caller on this machine.
_OF_PROXIES = (
    "forwarded",
    "via",
    "x-forwarded-for",
    "x-forwarded-host",
    "x-forwarded-proto",
    "x-real-ip",
)
_LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
_MAX_CACHED = 10_000
# Workers show tokens, which are bound to nodes.
_OF_PEOPLE = tuple(role for role in Role if role is not Role.WORKER)
SESSION_TOKEN = "hwqueue.token"
"""Member of a scope: the hash of the token that somebody signed in with."""
ALL_TENANTS = "*"
"""What a proxy says of users of all tenants, where it must say something."""


class Authenticator(Protocol):
    """A way to find out who calls."""

    async def __call__(self, connection: HTTPConnection) -> Principal | None:
        """Who calls; None: nothing for this authenticator. Raises: HTTPProblem, if it fails."""
        ...


def authenticators(settings: ServerSettings, pools: Pools, rate_limits: RateLimits) -> list[Authenticator]:
    """The authenticators that the settings allow, in the order they are tried."""
    match settings.effective_auth:
        case "none":
            return [Anonymous(settings)]
        case "proxy":
            return [BearerTokens(settings, pools, rate_limits), ProxyHeaders(settings)]
        case _:
            return [BearerTokens(settings, pools, rate_limits)]


async def authenticate(authenticators: Sequence[Authenticator], connection: HTTPConnection) -> Principal:
    """Who calls. Raises: HTTPProblem (401, 403)."""
    for authenticator in authenticators:
        principal = await authenticator(connection)
        if principal is not None:
            return principal
    raise unauthorised("who are you? no token was given")


def unauthorised(message: str) -> HTTPProblem:
    """The answer to somebody who is not known."""
    return HTTPProblem(
        401,
        message,
        hint="send the header Authorization: Bearer TOKEN; hwqueue token create makes one",
        headers={"WWW-Authenticate": 'Bearer realm="hwqueue"'},
    )


class BearerTokens:
    """`Authorization: Bearer`, looked up by its hash and cached for some seconds."""

    def __init__(self, settings: ServerSettings, pools: Pools, rate_limits: RateLimits) -> None:
        self._pools = pools
        self._rate_limits = rate_limits
        self._seconds = settings.token_cache.total_seconds()
        self._cache: OrderedDict[bytes, tuple[float, Principal]] = OrderedDict()
        self._lookups = SingleFlight[Principal | None]()
        self._strangers = asyncio.Semaphore(max(1, settings.pool_size // 2))
        self._max_wait = settings.pool_timeout.total_seconds()

    async def __call__(self, connection: HTTPConnection) -> Principal | None:
        """The token's bearer; None without a token."""
        digest = _presented(connection)
        if digest is None:
            return None
        cached = self._cached(digest)
        if cached is not None:
            return cached
        address = address_of(connection)
        if digest in self._cache:
            # through a proxy all have one address: what others try must not lock out who was let in
            return await self._resolve(digest, address)
        async with self._stranger_slot():
            await self._rate_limits.check_unknown(address)
            return await self._resolve(digest, address)

    @asynccontextmanager
    async def _stranger_slot(self) -> AsyncIterator[None]:
        """One of the look-ups for unknown tokens: they do not keep all connections busy.

        Raises: psycopg_pool.PoolTimeout.
        """
        try:
            await asyncio.wait_for(self._strangers.acquire(), self._max_wait)
        except TimeoutError as error:
            raise PoolTimeout("too many tokens that are not known") from error
        try:
            yield
        finally:
            self._strangers.release()

    async def _resolve(self, digest: bytes, address: str) -> Principal:
        """Whom the database knows by a token. Raises: HTTPProblem (401)."""
        principal = await self._lookups.do(digest, lambda: self._look_up(digest))
        if principal is None:
            await self._rate_limits.count_unknown(address)
            raise unauthorised("this token lets nobody in: unknown, revoked or expired")
        return principal

    def _cached(self, digest: bytes) -> Principal | None:
        until, principal = self._cache.get(digest, (0.0, None))
        return principal if time.monotonic() < until else None

    async def _look_up(self, digest: bytes) -> Principal | None:
        asked_at = time.monotonic()
        async with self._pools.own_call("token check") as client:
            grant = await client.check_token(digest)
        if grant is None:
            self._cache.pop(digest, None)
            return None
        principal = Principal(
            actor=f"token:{grant.name}", role=Role(grant.role), tenant=grant.tenant, token_sha256=digest
        )
        seconds = self._seconds
        if grant.expires_at is not None:
            seconds = min(seconds, grant.expires_at.timestamp() - time.time())
        self._cache[digest] = (asked_at + seconds, principal)
        self._cache.move_to_end(digest)
        if len(self._cache) > _MAX_CACHED:
            self._cache.popitem(last=False)
        return principal


def _presented(connection: HTTPConnection) -> bytes | None:
    """The hash of the token that is presented, by a header or by a session of the dashboard.

    Raises: HTTPProblem (400, 401).
    """
    header = only(connection, "authorization")
    if header is None:
        found: bytes | None = connection.scope.get(SESSION_TOKEN)
        return found
    scheme, _, secret = header.partition(" ")
    if scheme.lower() != "bearer" or not secret.strip():
        raise unauthorised("the header Authorization is not a bearer token")
    return hash_of(secret.strip())


class ProxyHeaders:
    """Headers of a reverse proxy, believed if they come from its network."""

    def __init__(self, settings: ServerSettings) -> None:
        self._networks = settings.networks
        self._user = settings.proxy_user_header
        self._role = settings.proxy_role_header
        self._tenant = settings.proxy_tenant_header
        self._needs_tenant = settings.proxy_tenant_required
        self._secret = settings.proxy_secret
        self._secret_header = settings.proxy_secret_header

    async def __call__(self, connection: HTTPConnection) -> Principal | None:
        """Whom the proxy names; None if it names nobody or is not the proxy."""
        user = only(connection, self._user)
        if user is None or not self._is_proxy(connection):
            return None
        # Browsers send what the proxy knows their users by with requests of any page.
        if _takes_something(connection) and _is_foreign(connection):
            raise HTTPProblem(403, _FOREIGN, hint=_FOREIGN_HINT)
        role, tenant = only(connection, self._role), only(connection, self._tenant)
        if not user.strip() or len(user) > 200 or not user.isprintable():
            raise HTTPProblem(
                403,
                f"the header {self._user} is no name of 1 to 200 characters",
                hint="the proxy must send the user's name there, of printable characters",
            )
        if role not in _OF_PEOPLE:
            raise HTTPProblem(
                403,
                f"the proxy gives {user} no role that is known",
                hint=f"it must set {self._role} to one of {', '.join(_OF_PEOPLE)}",
            )
        if tenant is None and self._needs_tenant:
            raise HTTPProblem(
                403,
                f"the proxy gives {user} no tenant",
                hint=f"it must set {self._tenant} to the user's tenant, or to * for all of them; "
                "where there are no tenants, start the server with --no-proxy-tenant-required",
            )
        if tenant is not None and not 1 <= len(tenant) <= 100:
            raise HTTPProblem(
                403,
                f"the header {self._tenant} is no tenant",
                hint="the proxy must send a tenant of 1 to 100 characters there",
            )
        if self._needs_tenant and tenant == ALL_TENANTS:
            tenant = None
        return Principal(actor=f"user:{user}", role=Role(role), tenant=tenant)

    def _is_proxy(self, connection: HTTPConnection) -> bool:
        if connection.client is None:
            return False
        try:
            peer = ip_address(connection.client.host)
        except ValueError:
            return False
        # a socket for IPv6 takes IPv4, too, and says so in the address
        if isinstance(peer, IPv6Address) and peer.ipv4_mapped:
            peer = peer.ipv4_mapped
        return any(peer in network for network in self._networks) and self._has_secret(connection)

    def _has_secret(self, connection: HTTPConnection) -> bool:
        if self._secret is None:
            return True
        given = only(connection, self._secret_header) or ""
        return hmac.compare_digest(given.encode(), self._secret.encode())


class Anonymous:
    """Everybody is an admin. Not for pages of other sites that a browser here shows.

    Where names are allowed, only for who asked for one of them: a page's own name can be made to
    point here. Where nobody said that it be so, not through a proxy either.
    """

    def __init__(self, settings: ServerSettings) -> None:
        self._implied = settings.auth is None
        self._hosts = settings.allowed_hosts or (_LOOPBACK_NAMES if self._implied else ())

    async def __call__(self, connection: HTTPConnection) -> Principal | None:
        """The same principal for everybody."""
        headers = connection.headers
        if _is_foreign(connection):
            raise HTTPProblem(403, _FOREIGN, hint=_FOREIGN_HINT)
        if self._implied and any(name in headers for name in _OF_PROXIES):
            raise HTTPProblem(
                403,
                "this server lets in everybody on its machine, and is behind a proxy",
                hint="start it with --auth tokens, --auth proxy or --no-auth",
            )
        if self._hosts and _host_name(headers.get("host", "")) not in self._hosts:
            raise HTTPProblem(
                403,
                "this server lets in everybody, and goes by another name",
                hint=f"ask for {self._hosts[0]}, or start it with --auth tokens",
            )
        # of IPv6, too, the address alone: all machines of a site may be in one network
        address = connection.client.host if connection.client else None
        return Principal(actor="anonymous", role=Role.ADMIN, address=address)


def address_of(connection: HTTPConnection) -> str:
    """Whose guesses are counted together; of IPv6 a network: guessers have one to choose from."""
    host = connection.client.host if connection.client else ""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if address.version == 4 or address.ipv4_mapped:
        return str(address)
    return str(ip_network((int(address) >> 64 << 64, 64)))


def only(connection: HTTPConnection, header: str) -> str | None:
    """The header's value. Raises: HTTPProblem, if it is there twice: a proxy may have added one."""
    values = connection.headers.getlist(header)
    if len(values) > 1:
        raise HTTPProblem(400, f"the header {header} is there {len(values)} times")
    return values[0] if values else None


def _takes_something(connection: HTTPConnection) -> bool:
    """Whether a request changes something, or keeps one of the places for streams."""
    if connection.scope["method"] not in ("GET", "HEAD"):
        return True
    path: str = connection.scope["path"]
    return path.endswith(("/events/stream", "/logs/stream"))


def _is_foreign(connection: HTTPConnection) -> bool:
    """Whether a page of another site asks. Browsers say so; old ones tell the page's origin."""
    site, origin = connection.headers.get("sec-fetch-site"), connection.headers.get("origin")
    if site is not None or origin is None:
        return site in ("cross-site", "same-site")
    # a proxy in front may have another name than this server
    names = (connection.headers.get("host"), connection.headers.get("x-forwarded-host"))
    return not any(origin.partition("://")[2] == name for name in names)


def hash_of(secret: str) -> bytes:
    """What the database knows of a secret. It has 256 random bits, so one sha256 is enough."""
    return hashlib.sha256(secret.encode()).digest()


def _host_name(host: str) -> str:
    """`[::1]:8080` as `::1`, `localhost:8080` as `localhost`."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()
