"""The routes of the API, by subject."""

from collections.abc import Sequence

from fastapi import APIRouter

from hwqueue.server.routers import leases, match, me, nodes, queues

ROUTERS: Sequence[APIRouter] = (
    me.router,
    leases.router,
    queues.router,
    nodes.router,
    match.router,
)
