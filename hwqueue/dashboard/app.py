"""The dashboard as an app of its own, to be mounted beside the API."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import psycopg
from fastapi import FastAPI
from psycopg_pool import PoolClosed, PoolTimeout
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from hwqueue.dashboard import actions, by_filter, chosen, sign_in
from hwqueue.dashboard.auth import AuthMiddleware
from hwqueue.dashboard.pages import ROUTES
from hwqueue.dashboard.reads import Reads
from hwqueue.dashboard.render import LIVE_SECONDS, STATIC, page, static_version
from hwqueue.dashboard.sessions import SessionStore
from hwqueue.dashboard.standing import Standing
from hwqueue.errors import HwqueueError
from hwqueue.hints import of_error
from hwqueue.server.auth import Authenticator
from hwqueue.server.event_streams import EventStreams
from hwqueue.server.fair_slots import Busy
from hwqueue.server.pools import Pools
from hwqueue.server.problems import HTTPProblem, answer
from hwqueue.server.settings import ServerSettings
from hwqueue.text import one_line

# The pages' own connections: what they cost can neither keep the API from answering nor pile up.
_READ_CONNECTIONS = 3
_READ_TIMEOUT = timedelta(seconds=8)
_log = logging.getLogger("hwqueue.dashboard")


class Dashboard:
    """The pages and what they hold open: `app` answers for as long as `lifespan` lasts."""

    def __init__(
        self, settings: ServerSettings, authenticators: Sequence[Authenticator], streams: EventStreams
    ) -> None:
        own = replace(settings, pool_size=2, read_pool_size=_READ_CONNECTIONS, read_timeout=_READ_TIMEOUT)
        self.pools = Pools(own)
        self._sessions = SessionStore(settings)
        self.app = Starlette(
            routes=[
                Mount(f"/static/{static_version()}", _Static(directory=STATIC), name="static"),
                *sign_in.ROUTES,
                *actions.ROUTES,
                *chosen.ROUTES,
                *by_filter.ROUTES,
                *ROUTES,
            ],
            middleware=[
                Middleware(GZipMiddleware, minimum_size=1000),
                Middleware(
                    AuthMiddleware, authenticators=authenticators, settings=settings, sessions=self._sessions
                ),
            ],
            exception_handlers={
                HTTPProblem: _refused,
                HwqueueError: _of_the_queue,
                HTTPException: _of_http,
                psycopg.Error: _of_the_database,
                PoolTimeout: _of_the_database,
                PoolClosed: _of_the_database,
            },
        )
        self.app.state.notices = {verb: action.done for verb, action in actions.ACTIONS.items()}
        self.app.state.streams = streams
        self.app.state.standing = Standing()
        self.reads = self.app.state.reads = Reads(self.pools)

    @asynccontextmanager
    async def lifespan(self) -> AsyncIterator[None]:
        """The connections and the sessions of the pages, for as long as they are served."""
        await self.pools.open()
        try:
            yield
        finally:
            self._sessions.close()
            await self.pools.close()


class _Static(StaticFiles):
    """Files whose address changes when they do, so that browsers may cache them for ever."""

    def file_response(self, *args: Any, **options: Any) -> Response:
        """Starlette's own."""
        response = super().file_response(*args, **options)
        if response.status_code == 200:
            response.headers["Cache-Control"] = "public, max-age=31536000, immutable"
        return response


def _problem(
    request: Request, status: int, headline: str, message: str, *, hint: str | None = None,
    code: str | None = None, live: int = 0,
) -> Response:  # fmt: skip
    return page(
        request,
        "problem.html",
        headline,
        live=live,
        status=status,
        message=message,
        hint=hint,
        code=code,
        dialog=request.headers.get("HX-Request") == "true",
    )


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPProblem)
    if error.status == 401:
        return sign_in.ask(request, error)
    headline = "Not allowed" if error.status < 429 else "Too much at a time"
    return _problem(request, error.status, headline, str(error), hint=error.hint)


async def _of_the_queue(request: Request, error: Exception) -> Response:
    assert isinstance(error, HwqueueError)
    headline = {404: "Not found", 409: "Not possible now"}.get(error.http_status, "Refused")
    hint = of_error(error, "cli")
    return _problem(request, error.http_status, headline, str(error), hint=hint, code=error.sqlstate)


async def _of_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == 404:
        return _problem(request, 404, "Not found", f"There is no page {request.url.path}.")
    if error.status_code == 405:
        # most who send something here mean the API, and are no browsers
        allowed = {"Allow": (error.headers or {}).get("Allow", "GET")}
        message = f"{request.method} is not for this address: it is a page of the dashboard"
        hint = f"the HTTP API is below /api/v1, as in {request.method} /api/v1{request.url.path}"
        return answer(request, 405, message, hint=hint, headers=allowed)
    return _problem(request, error.status_code, "Refused", str(error.detail))


async def _of_the_database(request: Request, error: Exception) -> Response:
    if isinstance(error, psycopg.errors.QueryCanceled):
        return _problem(
            request,
            504,
            "That took too long",
            "The database was asked for more than it could say in 8 s; nothing was changed.",
            hint="Ask for less: another filter, or a queue and a state.",
        )
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        hint = "It takes a server whose database user has the role hwqueue_admin."
        return _problem(request, 403, "Not allowed", one_line(error), hint=hint)
    if isinstance(error, Busy):
        return _problem(request, 503, "Too much at a time", str(error), hint="Wait, and try again.")
    _log.error("%s: %s", one_line(request.url.path), one_line(error))
    return _problem(
        request,
        503,
        "The database does not answer",
        "This page has no earlier values to show.",
        hint="It tries again by itself; see that Postgres runs and takes connections.",
        live=LIVE_SECONDS if request.method == "GET" else 0,
    )


def mount_dashboard(api: FastAPI, settings: ServerSettings) -> None:
    """Serve the dashboard for every address that the API has no route for, save below `/api`."""
    services = api.state.services
    dashboard = Dashboard(settings, services.authenticators, services.streams)
    not_found, lifespan = api.router.default, api.router.lifespan_context

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not scope["path"].startswith("/api/"):
            await dashboard.app(scope, receive, send)
        else:
            await not_found(scope, receive, send)

    @asynccontextmanager
    async def both(app: FastAPI) -> AsyncIterator[Mapping[str, Any]]:
        async with lifespan(app) as state, dashboard.lifespan():
            yield state or {}

    api.state.dashboard = dashboard
    api.router.default = serve
    api.router.lifespan_context = both
