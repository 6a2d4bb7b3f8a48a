"""Who comes in, forms that only our own pages can send, and the headers of every answer."""

from __future__ import annotations

import hashlib
import hmac
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

from hwqueue.server.auth import Authenticator, Tokens, authenticate
from hwqueue.server.problems import Refusal
from hwqueue.server.roles import Principal
from hwqueue.server.roles import Scope as May

SESSION = "hwqueue-session"  # the API token of who signed in
FORM = "hwqueue-form"  # a random number that our forms prove to know
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

    def __init__(self, app: ASGIApp, *, ways: Sequence[Authenticator], shard: int) -> None:
        self._app = app
        self._ways = ways
        self._shard = shard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Find out who asks, and hand on; pages decide what to show to whom they do not know."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        cookies = HTTPConnection(scope).cookies
        form = cookies.get(FORM) or secrets.token_urlsafe(32)
        session = cookies.get(SESSION)
        viewer, refusal = await self._viewer(scope, session)
        if viewer is not None:  # for the log
            scope.setdefault("state", {})["actor"] = viewer.actor
        scope["dashboard"] = {
            "viewer": viewer,
            "refusal": refusal,
            "again": lambda: self._viewer(scope, session),
            "may_sign_in": any(isinstance(way, Tokens) for way in self._ways),
            "csrf": form_token(form),
            "shard": self._shard,
        }

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                milliseconds = (time.perf_counter() - began) * 1000
                headers.append("Server-Timing", f"page;dur={milliseconds:.1f}")
                if FORM not in cookies and not scope["path"].startswith(_static(scope)):
                    headers.append("Set-Cookie", cookie(scope, FORM, form))
            await send(message)

        await self._app(scope, receive, send_with_headers)

    async def _viewer(
        self, scope: Scope, session: str | None
    ) -> tuple[Viewer | None, Refusal | None]:
        """Who looks; else why nobody may."""
        headers = Headers(scope=scope)
        signed_in = session is not None and "authorization" not in headers
        try:
            principal = await authenticate(self._ways, _connection(scope, headers, session))
        except Refusal as refusal:
            return None, refusal
        if not principal.has(May.READ):
            return None, Refusal(403, f"the role {principal.role} does not see the dashboard")
        if principal.tenant is not None:
            return None, Refusal(
                403, f"the dashboard shows all tenants, and you may see {principal.tenant} only"
            )
        return _viewer(principal, signed_in), None


def _viewer(principal: Principal, signed_in: bool) -> Viewer:
    return Viewer(
        name=principal.actor.partition(":")[2] or principal.actor,
        role=str(principal.role),
        actor=principal.actor,
        caller=principal.caller,
        may_act=principal.has(May.OPERATE),
        signed_in=signed_in,
    )


def _connection(scope: Scope, headers: Headers, session: str | None) -> HTTPConnection:
    """What the API's doors look at: with the session's token; a link may be on any site's page."""
    given = list(scope["headers"])
    if session is not None and "authorization" not in headers:
        given.append((b"authorization", b"Bearer " + session.encode("latin-1", "replace")))
    if scope["method"] == "GET" and headers.get("sec-fetch-mode") == "navigate":
        given = [(name, value) for name, value in given if name != b"sec-fetch-site"]
    return HTTPConnection({**scope, "headers": given})


def _static(scope: Scope) -> str:
    return f"{scope.get('root_path', '')}/static/"


def cookie(scope: Scope, name: str, value: str, *, ends: bool = False) -> str:
    """A cookie for our pages alone, until the browser is closed; `ends` takes it away."""
    path = scope.get("root_path", "") or "/"
    parts = [f"{name}={value}", f"Path={path}", "HttpOnly", "SameSite=Lax"]
    if scope["scheme"] == "https":
        parts.append("Secure")
    if ends:
        parts.append("Max-Age=0")
    return "; ".join(parts)


def form_token(form: str) -> str:
    """What a form carries; only a page of ours knows it, since it takes the cookie to make it."""
    return hashlib.sha256(f"hwqueue form {form}".encode()).hexdigest()


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
    body = await request.body()
    if len(body) > _MAX_FORM:
        raise Refusal(413, "the form is too large")
    fields = parse_qs(body.decode("utf-8", "replace"), keep_blank_values=True)
    wanted, sent = form_token(request.cookies.get(FORM, "")), fields.get("csrf", [""])[-1]
    if not request.cookies.get(FORM) or not hmac.compare_digest(sent.encode(), wanted.encode()):
        raise Refusal(403, "the form is out of date", hint="go back, load the page and try again")
    return fields


def viewer(request: Request) -> Viewer:
    """Who looks at this page. Raises: Refusal, when nobody may."""
    found: Viewer | None = request.scope["dashboard"]["viewer"]
    if found is None:
        refusal: Refusal = request.scope["dashboard"]["refusal"]
        raise refusal
    return found


async def check_again(request: Request) -> None:
    """For what lasts: whoever looks may still do so. Raises: Refusal."""
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
