"""Metrics for Prometheus."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Header, Request
from fastapi.responses import PlainTextResponse, Response
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from hwqueue.server.dependencies import AuthenticatedRoute
from hwqueue.server.routers.shared import Reader
from hwqueue.single_flight import SingleFlight

router = APIRouter(route_class=AuthenticatedRoute, tags=["views"])

_scrapes = SingleFlight[bytes]()


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request, caller: Reader, accept: Annotated[str, Header()] = "") -> Response:
    """Everything that monitoring wants to know, as Prometheus reads it."""
    registry: CollectorRegistry = request.app.state.metrics
    try:
        encode, media_type = choose_encoder(accept)
    except (TypeError, ValueError):  # a version that is no number
        encode, media_type = choose_encoder("")

    # The collector waits for the database by itself, on a connection of its own. All who ask share
    # a thread: there are few of them, and a new connection needs one to look up its address.
    async def scrape() -> bytes:
        return await asyncio.to_thread(encode, registry)

    return Response(await _scrapes.do((registry, media_type), scrape), media_type=media_type)
