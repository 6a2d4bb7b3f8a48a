"""Signing in with a token of the API, and out."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from hwqueue.dashboard.door import SESSION, cookie, read_form
from hwqueue.dashboard.render import Links, page
from hwqueue.server.problems import Refusal


def ask(request: Request, refusal: Refusal) -> Response:
    """The form that asks for a token, in the place of the page that was asked for."""
    return page(
        request,
        "sign_in.html",
        "Sign in",
        live=0,
        status=401,
        had_session=SESSION in request.cookies,
        refusal=refusal,
        next=f"{request.url.path}?{request.url.query}".rstrip("?"),
    )


async def sign_in(request: Request) -> Response:
    """Keep the token in a cookie that scripts cannot read; the next request shows what it is."""
    fields = await read_form(request)
    links = Links(request)
    token = fields.get("token", "").strip()
    if not token.isascii() or not token.isprintable() or any(each in token for each in ' ";,\\'):
        token = "-"
    response = RedirectResponse(here(links, fields.get("next", "")), 303)
    response.headers.append("Set-Cookie", cookie(request.scope, SESSION, token))
    return response


async def sign_out(request: Request) -> Response:
    """Forget the token."""
    await read_form(request)
    response = RedirectResponse(Links(request)(), 303)
    response.headers.append("Set-Cookie", cookie(request.scope, SESSION, "", ends=True))
    return response


def here(links: Links, path: str) -> str:
    """A path of the dashboard to go back to; anything else becomes its first page."""
    is_ours = path.startswith(f"{links.root}/") and not path.startswith(("//", "/\\"))
    return path if is_ours and path.isprintable() else links()


ROUTES = [
    Route("/sign-in", sign_in, methods=["POST"]),
    Route("/sign-out", sign_out, methods=["POST"]),
]
