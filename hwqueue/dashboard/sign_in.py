"""Signing in with a token of the API, and out."""

from __future__ import annotations

import anyio.to_thread
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from hwqueue.dashboard.door import NO_SESSION, SESSION, jar_of, read_form
from hwqueue.dashboard.render import Links, page
from hwqueue.dashboard.sessions import Sessions
from hwqueue.server.auth import hash_of
from hwqueue.server.problems import Refusal


def ask(request: Request, refusal: Refusal) -> Response:
    """The form that asks for a token, in the place of the page that was asked for."""
    return page(
        request,
        "sign_in.html",
        "Sign in",
        live=0,
        status=401,
        had_session=jar_of(request).get(SESSION) is not None,
        refusal=refusal,
        next=f"{request.url.path}?{request.url.query}".rstrip("?"),
    )


async def sign_in(request: Request) -> Response:
    """Begin a session for a token that lets somebody in; the next page shows who it is."""
    fields = await read_form(request)
    state, jar, links = request.scope["dashboard"], jar_of(request), Links(request)
    sessions: Sessions = state["sessions"]
    token = hash_of(fields.get("token", "").strip())
    if before := jar.get(SESSION):
        sessions.end(before)
    session = NO_SESSION
    if await state["knows"](token):
        session = await anyio.to_thread.run_sync(sessions.begin, token)
    response = RedirectResponse(here(links, fields.get("next", "")), 303)
    response.headers.append("Set-Cookie", jar.kept(SESSION, session))
    return response


async def sign_out(request: Request) -> Response:
    """End the session: who has copied its id gets in no more either."""
    await read_form(request)
    jar = jar_of(request)
    if session := jar.get(SESSION):
        request.scope["dashboard"]["sessions"].end(session)
    response = RedirectResponse(Links(request)(), 303)
    response.headers.append("Set-Cookie", jar.gone(SESSION))
    return response


def here(links: Links, path: str) -> str:
    """A path of the dashboard to go back to; anything else becomes its first page."""
    is_ours = path.startswith(f"{links.root}/") and not path.startswith(("//", "/\\"))
    return path if is_ours and path.isprintable() else links()


ROUTES = [
    Route("/sign-in", sign_in, methods=["POST"]),
    Route("/sign-out", sign_out, methods=["POST"]),
]
