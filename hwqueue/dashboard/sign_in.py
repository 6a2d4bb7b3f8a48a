"""Signing in with a token of the API, and out."""

from __future__ import annotations

import anyio.to_thread
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from hwqueue.dashboard.cookies import SESSION_COOKIE, cookies_of
from hwqueue.dashboard.csrf import read_form
from hwqueue.dashboard.render import Links, page
from hwqueue.dashboard.sessions import SessionStore
from hwqueue.server.auth import hash_of
from hwqueue.server.problems import HTTPProblem

_NO_SESSION = "-"


def ask(request: Request, refusal: HTTPProblem) -> Response:
    """The form that asks for a token, in the place of the page that was asked for."""
    return page(
        request,
        "sign_in.html",
        "Sign in",
        live=0,
        status=401,
        had_session=cookies_of(request).get(SESSION_COOKIE) is not None,
        refusal=refusal,
        next=f"{request.url.path}?{request.url.query}".rstrip("?"),
    )


async def sign_in(request: Request) -> Response:
    """Begin a session for a token that lets somebody in; the next page shows who it is."""
    fields = await read_form(request)
    state, cookies, links = request.scope["dashboard"], cookies_of(request), Links(request)
    sessions: SessionStore = state["sessions"]
    token = hash_of(fields.get("token", "").strip())
    if before := cookies.get(SESSION_COOKIE):
        sessions.delete(before)
    session = _NO_SESSION
    if await state["is_valid_token"](token):
        session = await anyio.to_thread.run_sync(sessions.create, token)
    response = RedirectResponse(here(links, fields.get("next", "")), 303)
    response.headers.append("Set-Cookie", cookies.set_header(SESSION_COOKIE, session))
    return response


async def sign_out(request: Request) -> Response:
    """End the session: who has copied its id gets in no more either."""
    await read_form(request)
    cookies = cookies_of(request)
    if session := cookies.get(SESSION_COOKIE):
        request.scope["dashboard"]["sessions"].delete(session)
    response = RedirectResponse(Links(request)(), 303)
    response.headers.append("Set-Cookie", cookies.delete_header(SESSION_COOKIE))
    return response


def here(links: Links, path: str) -> str:
    """A path of the dashboard to go back to; anything else becomes its first page."""
    is_ours = path.startswith(f"{links.root}/") and not path.startswith(("//", "/\\"))
    return path if is_ours and path.isprintable() else links()


ROUTES = [
    Route("/sign-in", sign_in, methods=["POST"]),
    Route("/sign-out", sign_out, methods=["POST"]),
]
