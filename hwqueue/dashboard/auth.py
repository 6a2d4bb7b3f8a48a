"""Who looks at the pages: authentication by the API's authenticators, or by a session's token."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import wraps

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hwqueue.dashboard.cookies import CSRF_COOKIE, SESSION_COOKIE, Cookies
from hwqueue.dashboard.csrf import CsrfSigner
from hwqueue.dashboard.reading import VIEWER
from hwqueue.dashboard.sessions import SessionStore
from hwqueue.server.auth import SESSION_TOKEN, Authenticator, BearerTokens, authenticate, unauthorised
from hwqueue.server.problems import HTTPProblem
from hwqueue.server.roles import Principal
from hwqueue.server.roles import Scope as May
from hwqueue.server.settings import ServerSettings

Page = Callable[[Request], Awaitable[Response]]

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

    counted_name: As whom their streams are counted, where each caller has a limit. may_act: they see
    the buttons, too; may_administer: also those for admins. signed_in: with a token, here.
    """

    name: str
    role: str
    actor: str
    counted_name: str
    may_act: bool
    may_administer: bool
    signed_in: bool


class AuthMiddleware:
    """ASGI middleware: finds out who looks, and sets cookies and the headers of every answer.

    It refuses nobody: pages decide what to show to whom they do not know (`protected`).
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        authenticators: Sequence[Authenticator],
        settings: ServerSettings,
        sessions: SessionStore,
    ) -> None:
        self._app = app
        self._authenticators = authenticators
        self._settings = settings
        self._sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        cookies = Cookies(scope, self._settings)
        browser = cookies.get(CSRF_COOKIE) or secrets.token_urlsafe(32)
        session = cookies.get(SESSION_COOKIE)
        viewer, refusal = await self._viewer(scope, session)
        if viewer is not None:
            scope.setdefault("state", {})["actor"] = viewer.actor  # for the log
            VIEWER.set(viewer.counted_name)
        signed_in = session if viewer is not None and viewer.signed_in else None
        actor = viewer.actor if viewer is not None else None
        signer = CsrfSigner(self._sessions.key, salt=json.dumps([signed_in, actor, browser]))
        bearers = [each for each in self._authenticators if isinstance(each, BearerTokens)]
        scope["dashboard"] = {
            "cookies": cookies,
            "sessions": self._sessions,
            "is_valid_token": lambda token: _is_valid(bearers, scope, token),
            "csrf_signer": signer,
            "viewer": viewer,
            "refusal": refusal,
            "reauthenticate": lambda: self._viewer(scope, session),
            "may_sign_in": bool(bearers),
            "csrf": signer.token_for(f"{scope['path']}?{scope['query_string'].decode('latin-1')}"),
        }
        is_static = scope["path"].startswith(f"{scope.get('root_path', '')}/static/")

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                milliseconds = (time.perf_counter() - began) * 1000
                headers.append("Server-Timing", f"page;dur={milliseconds:.1f}")
                if cookies.get(CSRF_COOKIE) is None and not is_static:
                    headers.append("Set-Cookie", cookies.set_header(CSRF_COOKIE, browser))
            await send(message)

        await self._app(scope, receive, send_with_headers)

    async def _viewer(self, scope: Scope, session: str | None) -> tuple[Viewer | None, HTTPProblem | None]:
        """Who looks; else why nobody may."""
        headers = Headers(scope=scope)
        token = self._sessions.find(session)
        connection = _connection(scope, headers, token)
        try:
            principal = await authenticate(self._authenticators, connection)
        except HTTPProblem as refusal:
            if refusal.status == 401 and session is not None and token is None:
                return None, unauthorised("the token lets nobody in, or the session is over")
            return None, refusal
        if not principal.has(May.READ):
            return None, HTTPProblem(
                403,
                f"the role {principal.role} does not see the dashboard",
                hint="it takes the role viewer, operator or admin",
            )
        if principal.tenant is not None:
            return None, HTTPProblem(
                403,
                f"the dashboard shows all tenants, and you may see {principal.tenant} only",
                hint="use the HTTP API, or a token for all tenants",
            )
        return _viewer(principal, token is not None and "authorization" not in headers), None


async def _is_valid(bearers: Sequence[BearerTokens], scope: Scope, token: bytes) -> bool:
    """Whether a token lets somebody in. Raises: HTTPProblem, but 401."""
    try:
        await authenticate(bearers, _connection(scope, Headers(scope=scope), token))
    except HTTPProblem as refusal:
        if refusal.status != 401:
            raise
        return False
    return True


def _viewer(principal: Principal, signed_in: bool) -> Viewer:
    return Viewer(
        name=principal.actor.partition(":")[2] or principal.actor,
        role=str(principal.role),
        actor=principal.actor,
        counted_name=principal.counted_name,
        may_act=principal.has(May.OPERATE),
        may_administer=principal.has(May.ADMINISTER),
        signed_in=signed_in,
    )


def _connection(scope: Scope, headers: Headers, token: bytes | None) -> HTTPConnection:
    """What authenticators look at: with the session's token; a link may be on any site's page."""
    given = list(scope["headers"])
    is_page = headers.get("sec-fetch-dest", "document") == "document"
    if scope["method"] == "GET" and headers.get("sec-fetch-mode") == "navigate" and is_page:
        given = [(name, value) for name, value in given if name != b"sec-fetch-site"]
    return HTTPConnection({**scope, "headers": given, SESSION_TOKEN: token})


def viewer(request: Request) -> Viewer:
    """Who looks at this page. Raises: HTTPProblem, when nobody may."""
    found: Viewer | None = request.scope["dashboard"]["viewer"]
    if found is None:
        refusal: HTTPProblem = request.scope["dashboard"]["refusal"]
        raise refusal
    return found


async def reauthenticate(request: Request) -> None:
    """For streams: check again that the viewer may look. Raises: HTTPProblem."""
    found, refusal = await request.scope["dashboard"]["reauthenticate"]()
    if found is None:
        raise refusal


ROUTES: list[Route] = []
"""The pages for those who may look."""


def protected(path: str) -> Callable[[Page], Page]:
    """A page for those who may look, at this address."""

    def add(endpoint: Page) -> Page:
        @wraps(endpoint)
        async def checked(request: Request) -> Response:
            viewer(request)
            return await endpoint(request)

        ROUTES.append(Route(path, checked))
        return endpoint

    return add
