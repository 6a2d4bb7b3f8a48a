"""The API: routers, what they share, and what goes around them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from hwqueue.metrics import HwqueueCollector, registry_for
from hwqueue.server import openapi, problems
from hwqueue.server.announcements import Announcements
from hwqueue.server.auth import authenticators
from hwqueue.server.body_limit import BodyLimitMiddleware
from hwqueue.server.dependencies import Services
from hwqueue.server.etag import ETagMiddleware
from hwqueue.server.event_streams import EventStreams
from hwqueue.server.large_requests import LargeRequests
from hwqueue.server.pools import Pools
from hwqueue.server.rate_limits import RateLimits
from hwqueue.server.request_log import RequestLogMiddleware
from hwqueue.server.routers import ROUTERS, health, metrics
from hwqueue.server.settings import ServerSettings
from hwqueue.stopping import told_first

PREFIX = "/api/v1"


def create_api(settings: ServerSettings) -> FastAPI:
    """The API; it connects to the database when it starts (`lifespan`).

    What requests share is `app.state.services`; another package may include routers of its own,
    whose routes use `hwqueue.server.dependencies.RequireScope` as those here do.
    """
    pools, rate_limits = Pools(settings), RateLimits(settings)
    streams = EventStreams(settings.max_streams, settings.max_streams_per_caller)
    announcements = Announcements(settings.dsn, streams)
    collector = HwqueueCollector(settings.dsn, timeout=settings.read_timeout)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await pools.open()
        try:
            with told_first(streams.stop):
                yield
        finally:
            await announcements.close()
            collector.close()
            await pools.close()

    app = FastAPI(
        title="hwqueue",
        version=version("hwqueue"),
        summary="A task queue inside Postgres that knows which machine may run what.",
        description=openapi.DESCRIPTION,
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        openapi_tags=openapi.TAGS,
        openapi_url=f"{PREFIX}/openapi.json",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        # a redirect would say http, where a proxy in front has https
        redirect_slashes=False,
        middleware=_middleware(settings),
        generate_unique_id_function=lambda route: route.name,
        separate_input_output_schemas=False,
    )
    app.state.services = Services(
        settings,
        pools,
        rate_limits,
        streams,
        authenticators(settings, pools, rate_limits),
        LargeRequests(settings),
        announcements,
    )
    app.state.head_seconds = settings.head_timeout.total_seconds()
    app.state.metrics = registry_for(collector)
    problems.install(app)
    app.include_router(health.router)
    app.include_router(metrics.router)
    for router in ROUTERS:
        app.include_router(router, prefix=PREFIX)
    openapi.install(app)
    return app


def _middleware(settings: ServerSettings) -> list[Middleware]:
    around = [
        Middleware(RequestLogMiddleware, has_https=settings.has_https),
        Middleware(
            BodyLimitMiddleware,
            max_bytes=min(settings.max_single_body_bytes, settings.max_body_bytes),
            larger={f"{PREFIX}/(leases/batch|nodes/[^/]+/(settle|logs))": settings.max_body_bytes},
            seconds=settings.body_timeout.total_seconds(),
        ),
        Middleware(ETagMiddleware, prefix=f"{PREFIX}/"),
    ]
    if settings.cors_origins:
        around.append(
            Middleware(
                CORSMiddleware,
                allow_origins=settings.cors_origins,
                allow_methods=["GET", "POST", "PATCH"],
                allow_headers=[
                    "Authorization",
                    "Content-Type",
                    "Idempotency-Key",
                    "If-None-Match",
                    "Last-Event-ID",
                ],
                expose_headers=["ETag", "Link", "Location", "Retry-After", "X-Request-ID"],
                max_age=600,
            )
        )
    return around
