"""Dependencies of routes: who calls, what they may do, and what is done in their name.

Every route is an `AuthenticatedRoute` and declares the scope that it needs:
`caller: Annotated[Caller, Depends(RequireScope(...))]`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, get_args, get_origin
from urllib.parse import quote, unquote

from fastapi import Request, Response, Security, params
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.convertors import Convertor, register_url_convertor
from starlette.routing import Match
from starlette.types import Scope as ASGIScope

from hwqueue.client import AsyncClient
from hwqueue.server.announcements import Announcements
from hwqueue.server.auth import Authenticator, authenticate
from hwqueue.server.event_streams import EventStreams
from hwqueue.server.large_requests import (
    InvalidBody,
    LargeBodyRequest,
    LargeRequests,
    RunInThread,
    is_large,
)
from hwqueue.server.pools import Pools
from hwqueue.server.problems import HTTPProblem
from hwqueue.server.rate_limits import RateLimits
from hwqueue.server.roles import SCOPES, Principal, Role, Scope
from hwqueue.server.settings import ServerSettings

T = TypeVar("T")

_KEPT = re.compile("%(2f|25)", re.IGNORECASE)

# For the OpenAPI document alone: what it finds is looked at by the authenticators.
_bearer = HTTPBearer(
    scheme_name="token",
    description="An API token: `hwqueue token create NAME --role ROLE`.",
    auto_error=False,
)


@dataclass(frozen=True, slots=True)
class Services:
    """What all requests share; `app.state.services`."""

    settings: ServerSettings
    pools: Pools
    rate_limits: RateLimits
    streams: EventStreams
    authenticators: Sequence[Authenticator]
    large_requests: LargeRequests
    announcements: Announcements


@dataclass(frozen=True, slots=True)
class Caller:
    """Somebody who may do what the route does."""

    principal: Principal
    services: Services
    run_in_thread: RunInThread | None = None
    """Of a large request: runs what takes long in a thread."""

    @property
    def tenant(self) -> str | None:
        """The only tenant that they see; None: all."""
        return self.principal.tenant

    def call(self) -> AbstractAsyncContextManager[AsyncClient]:
        """A client for what touches a few rows; one transaction, in the caller's name.

        The database refuses what is not the caller's tenant's, whatever a route forgot.
        """
        return self.services.pools.call(self.principal.actor, self.tenant, self.run_in_thread)

    def node_call(self, key: Mapping[str, Any]) -> AbstractAsyncContextManager[AsyncClient]:
        """A client for the one call of a request of a node (`Pools.node_call`)."""
        return self.services.pools.node_call(self.principal.actor, key, self.run_in_thread)

    def read(self) -> AbstractAsyncContextManager[AsyncClient]:
        """A client for what may read a lot; it writes nothing."""
        return self.services.pools.read(self.principal.actor, self.tenant, self.run_in_thread)

    async def run(self, work: Callable[[], T]) -> T:
        """What `work` returns; of a large request in a thread."""
        if self.run_in_thread is None:
            return work()
        done: T = await self.run_in_thread(work)
        return done

    def own_tenant(self, asked: str | None, field: str) -> str | None:
        """The tenant of a request: the caller's only one, else what was asked.

        Raises: HTTPProblem (403), when another was asked.
        """
        if self.tenant is None:
            return asked
        if asked not in (None, self.tenant):
            raise HTTPProblem(
                403,
                f"{field} is {asked!r}, and the token is for tenant {self.tenant!r} alone",
                field=field,
                hint=f"leave out {field}",
            )
        return self.tenant


async def principal_of(request: Request) -> Principal:
    """Who calls, found out and counted once for each request.

    Raises: HTTPProblem (401, 403, 429).
    """
    known: Principal | None = getattr(request.state, "principal", None)
    if known is None:
        services: Services = request.app.state.services
        known = await authenticate(services.authenticators, request)
        request.state.principal, request.state.actor = known, known.actor
        await services.rate_limits.count_request(known.counted_name)
    return known


class NameInPath(Convertor[str]):
    """The rest of a path, `{signal:name}`: a name with slashes, plain or encoded, or lines."""

    regex = "(?s:.+)"

    def convert(self, value: str) -> str:
        """The name itself: what an `AuthenticatedRoute` left encoded is decoded."""
        return unquote(value)

    def to_string(self, value: str) -> str:
        """The name as a path has it."""
        return quote(value, safe="")


def _name_before(*verbs: str) -> NameInPath:
    """The rest of a path but for a verb at its end: names may have slashes.

    Where such a name ends like a verb, the slash is encoded: `/queues/a%2Fpause/pause`.
    """

    class NameBefore(NameInPath):
        regex = f"(?:(?!/(?:{'|'.join(verbs)})$).)+"

    return NameBefore()


register_url_convertor("name", NameInPath())
register_url_convertor("queue", _name_before("policy", "pause", "resume", "requeue-failed"))
register_url_convertor("limit", _name_before("throttle", "lanes"))
register_url_convertor("schedule", _name_before("pause", "resume", "trigger", "backfill", "fires"))


class AuthenticatedRoute(APIRoute):
    """A route that knows who calls before it reads what they send: strangers send nothing.

    In a path an encoded slash (`%2F`) is part of a name, where a plain one may be followed by what
    is below the name. It and an encoded percent sign stay encoded until `NameInPath` reads them.
    """

    def matches(self, scope: ASGIScope) -> tuple[Match, ASGIScope]:
        """Starlette's own, which sees paths decoded."""
        return super().matches(_with_encoded_slashes(scope))

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's own, which reads the body before anything else."""
        handle = super().get_route_handler()

        async def handle_known(request: Request) -> Response:
            principal = await principal_of(request)
            if self.body_field is None:
                return await handle(request)
            body = await _body_of(request, principal)
            if not is_large(body):
                return await self.answer_quickly(request, principal, body) or await handle(request)
            large: LargeRequests = request.app.state.services.large_requests
            async with large.slot(principal.counted_name):
                request.state.run_in_thread = large.run
                try:
                    return await handle(LargeBodyRequest(request, body, self.body_field, large.run))
                except InvalidBody as refused:
                    raise refused.error from None

        return handle_known

    async def answer_quickly(self, request: Request, principal: Principal, body: bytes) -> Response | None:
        """The answer to a small request without FastAPI's own handler; None: that has to look."""
        return None


async def _body_of(request: Request, principal: Principal) -> bytes:
    """The body, counted before it is read if the caller says how long it is.

    Raises: HTTPProblem (429), starlette's HTTPException (408, 413).
    """
    rate_limits: RateLimits = request.app.state.services.rate_limits
    said = request.headers.get("content-length")
    if said is not None:
        await rate_limits.count_bytes(principal.counted_name, int(said))
        return await request.body()
    body = await request.body()
    await rate_limits.count_bytes(principal.counted_name, len(body))
    return body


def _with_encoded_slashes(scope: ASGIScope) -> ASGIScope:
    raw = (scope.get("raw_path") or b"").decode("latin-1")
    if scope["type"] != "http" or not _KEPT.search(raw):
        return scope
    return {**scope, "path": unquote(_KEPT.sub(lambda found: f"%25{found[1].upper()}", raw))}


@dataclass(frozen=True, slots=True)
class RequireScope:
    """A dependency: who calls has this scope, or is refused.

    tenants: whether what the route shows and does can be told apart by tenant. Where it cannot,
    callers of a single tenant are refused.
    """

    scope: Scope
    tenants: bool = False

    async def __call__(
        self,
        request: Request,
        _token: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)] = None,
    ) -> Caller:
        """The caller. Raises: HTTPProblem (401, 403, 429)."""
        services: Services = request.app.state.services
        principal = await principal_of(request)
        if not principal.has(self.scope):
            roles = " or ".join(role for role in Role if self.scope in SCOPES[role])
            raise HTTPProblem(
                403,
                f"role {principal.role} lacks the scope {self.scope}",
                hint=f"it takes a token of role {roles}"
                if self.scope is Scope.WORK
                else f"it takes the role {roles}: of a token, or by the proxy's word",
            )
        if principal.tenant is not None and not self.tenants:
            raise HTTPProblem(
                403,
                "this is about all tenants at once",
                hint=f"the token is for tenant {principal.tenant!r} alone; use one for all",
            )
        if request.scope["path"].startswith("/api/"):
            _check_parameters(request)
        return Caller(principal, services, getattr(request.state, "run_in_thread", None))


def _check_parameters(request: Request) -> None:
    """A misspelt filter must not show everything, and of two values neither is meant.

    Raises: HTTPProblem (422).
    """
    fields = list(_parameters(request.scope["route"].dependant))
    known = {field.alias for field in fields if isinstance(field.field_info, params.Query)}
    for name in request.query_params:
        if name not in known:
            raise HTTPProblem(
                422,
                f"there is no parameter {name[:100]!r}",
                field=name[:100],
                hint=f"parameters: {', '.join(sorted(known)) or 'none'}",
            )
    for field in fields:
        given = request.query_params if field.alias in known else request.headers
        if len(given.getlist(field.alias)) > 1 and not _takes_several(field):
            raise HTTPProblem(
                422,
                f"{field.alias} is given more than once",
                field=field.alias,
                hint="give it once",
            )


def _parameters(dependant: Dependant) -> Iterator[Any]:
    """The query parameters and headers of a route, those of what it depends on included.

    As FastAPI's fields, whose type is its own affair.
    """
    yield from dependant.query_params
    yield from dependant.header_params
    for dependency in dependant.dependencies:
        yield from _parameters(dependency)


def _takes_several(field: Any) -> bool:
    wanted = field.field_info.annotation
    return any(get_origin(kind) is list for kind in (wanted, *get_args(wanted)))
