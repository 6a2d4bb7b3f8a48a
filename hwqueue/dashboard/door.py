"""Who comes in, forms that only our own pages can send, and the headers of every answer."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hwqueue.dashboard.sessions import Proof, Sessions
from hwqueue.server.auth import (
    TOKEN_OF_SESSION,
    Authenticator,
    Tokens,
    authenticate,
    unauthorised,
)
from hwqueue.server.problems import Refusal
from hwqueue.server.roles import Principal
from hwqueue.server.roles import Scope as May
from hwqueue.server.settings import ServerSettings

SESSION = "hwqueue-session"  # the id of a session
FORM = "hwqueue-form"  # a random number of the browser's, which forms are made for
_HOST = "__Host-"  # browsers keep such cookies of this very host over https alone
NO_SESSION = "-"
_MAX_FORM = 64 * 1024
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'; object-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who looks at the pages.

    caller: As whom they are counted where each may have so much. may_act: they see the buttons,
    too. signed_in: with a token, here.
    """

    name: str
    role: str
    actor: str
    caller: str
    may_act: bool
    signed_in: bool


class Door:
    """Middleware: lets in whom the API lets in, if they may see everything."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        ways: Sequence[Authenticator],
        settings: ServerSettings,
        sessions: Sessions,
    ) -> None:
        self._app = app
        self._ways = ways
        self._settings = settings
        self._sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Find out who asks, and hand on; pages decide what to show to whom they do not know."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        jar = Jar(scope, self._settings)
        form = jar.get(FORM) or secrets.token_urlsafe(32)
        session = jar.get(SESSION)
        viewer, refusal = await self._viewer(scope, session)
        if viewer is not None:  # for the log
            scope.setdefault("state", {})["actor"] = viewer.actor
        signed_in = session if viewer is not None and viewer.signed_in else None
        actor = viewer.actor if viewer is not None else None
        proof = Proof(self._sessions.key, json.dumps([signed_in, actor, form]))
        scope["dashboard"] = {
            "jar": jar,
            "sessions": self._sessions,
            "knows": lambda token: self._knows(scope, token),
            "proof": proof,
            "viewer": viewer,
            "refusal": refusal,
            "again": lambda: self._viewer(scope, session),
            "may_sign_in": any(isinstance(way, Tokens) for way in self._ways),
            "csrf": proof.of(_address(scope)),
            "shard": self._settings.shard,
        }

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                milliseconds = (time.perf_counter() - began) * 1000
                headers.append("Server-Timing", f"page;dur={milliseconds:.1f}")
                if jar.get(FORM) is None and not scope["path"].startswith(_static(scope)):
                    headers.append("Set-Cookie", jar.kept(FORM, form))
            await send(message)

        await self._app(scope, receive, send_with_headers)

    async def _viewer(
        self, scope: Scope, session: str | None
    ) -> tuple[Viewer | None, Refusal | None]:
        """Who looks; else why nobody may."""
        headers = Headers(scope=scope)
        token = self._sessions.find(session)
        try:
            principal = await authenticate(self._ways, _connection(scope, headers, token))
        except Refusal as refusal:
            if refusal.status == 401 and session is not None and token is None:
                return None, unauthorised("the token lets nobody in, or the session is over")
            return None, refusal
        if not principal.has(May.READ):
            return None, Refusal(403, f"the role {principal.role} does not see the dashboard")
        if principal.tenant is not None:
            return None, Refusal(
                403, f"the dashboard shows all tenants, and you may see {principal.tenant} only"
            )
        return _viewer(principal, token is not None and "authorization" not in headers), None

    async def _knows(self, scope: Scope, token: bytes) -> bool:
        """Whether a token lets somebody in. Raises: Refusal, but 401."""
        connection = _connection(scope, Headers(scope=scope), token)
        try:
            await authenticate([way for way in self._ways if isinstance(way, Tokens)], connection)
        except Refusal as refusal:
            if refusal.status != 401:
                raise
            return False
        return True


def _viewer(principal: Principal, signed_in: bool) -> Viewer:
    return Viewer(
        name=principal.actor.partition(":")[2] or principal.actor,
        role=str(principal.role),
        actor=principal.actor,
        caller=principal.caller,
        may_act=principal.has(May.OPERATE),
        signed_in=signed_in,
    )


def _connection(scope: Scope, headers: Headers, token: bytes | None) -> HTTPConnection:
    """What the API's doors look at: with the session's token; a link may be on any site's page."""
    given = list(scope["headers"])
    is_page = headers.get("sec-fetch-dest", "document") == "document"
    if scope["method"] == "GET" and headers.get("sec-fetch-mode") == "navigate" and is_page:
        given = [(name, value) for name, value in given if name != b"sec-fetch-site"]
    return HTTPConnection({**scope, "headers": given, TOKEN_OF_SESSION: token})


def _address(scope: Scope) -> str:
    return f"{scope['path']}?{scope['query_string'].decode('latin-1')}"


def _static(scope: Scope) -> str:
    return f"{scope.get('root_path', '')}/static/"


class Jar:
    """The cookies of a request, and those that an answer to it sets."""

    def __init__(self, scope: Scope, settings: ServerSettings) -> None:
        self._cookies = HTTPConnection(scope).cookies
        self.is_secure = _is_secure(scope, settings)
        # `__Host-` is for the whole host, wherever the dashboard is mounted
        self._path = "/" if self.is_secure else scope.get("root_path", "") or "/"

    def get(self, name: str) -> str | None:
        """The value of a cookie of ours; one that a plain page could have set counts for nothing
        where browsers come over https."""
        return self._cookies.get(self._full(name))

    def kept(self, name: str, value: str) -> str:
        """The header that sets a cookie for our pages alone, until the browser is closed."""
        parts = [f"{self._full(name)}={value}", f"Path={self._path}", "HttpOnly", "SameSite=Lax"]
        return "; ".join([*parts, "Secure"] if self.is_secure else parts)

    def gone(self, name: str) -> str:
        """The header that takes a cookie away."""
        return f"{self.kept(name, '')}; Max-Age=0"

    def _full(self, name: str) -> str:
        return f"{_HOST}{name}" if self.is_secure else name


def _is_secure(scope: Scope, settings: ServerSettings) -> bool:
    """Whether browsers send our cookies over https alone.

    What the header of any proxy says is enough: a cookie that was made secure by mistake lets
    nobody in.
    """
    if scope["scheme"] == "https" or settings.has_secure_cookies:
        return True
    says = Headers(scope=scope).get("x-forwarded-proto", "")
    return settings.secure_cookies is None and says.strip().lower() == "https"


async def read_form(request: Request) -> dict[str, str]:
    """The fields of a form that one of our pages has sent, the last of each name.

    Raises: as `read_lists`.
    """
    return {name: values[-1] for name, values in (await read_lists(request)).items()}


async def read_lists(request: Request) -> dict[str, list[str]]:
    """The fields of a form that one of our pages has sent, with all values of each name.

    Raises: Refusal (403: another site's form, or an old one; 413).
    """
    headers = request.headers
    if headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
        raise Refusal(403, "pages of other sites may not act here")
    origin = headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != headers.get("host"):
        raise Refusal(403, "pages of other sites may not act here")
    if int(headers.get("content-length", "0")) > _MAX_FORM:
        raise Refusal(413, "the form is too large")
    jar, proof = jar_of(request), request.scope["dashboard"]["proof"]
    body = await request.body()
    if len(body) > _MAX_FORM:
        raise Refusal(413, "the form is too large")
    fields = parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True)
    if jar.get(FORM) is None and jar.is_secure:
        raise Refusal(
            403,
            "the browser sent no cookie",
            hint="open the dashboard over https; where there is none, "
            "start the server with --no-secure-cookies",
        )
    if jar.get(FORM) is None or not proof.fits(fields.get("csrf", [""])[-1]):
        raise Refusal(403, "the form is out of date", hint="go back, load the page and try again")
    return fields


def jar_of(request: Request) -> Jar:
    """The cookies of a request."""
    jar: Jar = request.scope["dashboard"]["jar"]
    return jar


def viewer(request: Request) -> Viewer:
    """Who looks at this page. Raises: Refusal, when nobody may."""
    found: Viewer | None = request.scope["dashboard"]["viewer"]
    if found is None:
        refusal: Refusal = request.scope["dashboard"]["refusal"]
        raise refusal
    return found


async def check_again(request: Request) -> None:
    """For what lasts: the reader may still do so. Raises: Refusal."""
    found, refusal = await request.scope["dashboard"]["again"]()
    if found is None:
        raise refusal


def seen(path: str, endpoint: Callable[[Request], Awaitable[Response]]) -> Route:
    """A page for those who may look."""

    @wraps(endpoint)
    async def checked(request: Request) -> Response:
        viewer(request)
        return await endpoint(request)

    return Route(path, checked)
