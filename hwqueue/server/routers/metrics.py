"""Metrics for Prometheus."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Request
from fastapi.responses import PlainTextResponse, Response
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from hwqueue.server.callers import Caller, Needs, Route
from hwqueue.server.roles import Scope

router = APIRouter(route_class=Route, tags=["views"])

Reader = Annotated[Caller, Depends(Needs(Scope.READ))]


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(
    request: Request, caller: Reader, accept: Annotated[str, Header()] = ""
) -> Response:
    """Everything that monitoring wants to know, as Prometheus reads it."""
    registry: CollectorRegistry = request.app.state.metrics
    try:
        encode, media_type = choose_encoder(accept)
    except (TypeError, ValueError):  # a version that is no number
        encode, media_type = choose_encoder("")
    # the collector waits for the database by itself, on a connection of its own
    text = await asyncio.to_thread(encode, registry)
    return Response(text, media_type=media_type)
