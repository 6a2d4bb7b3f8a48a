"""The routes of the API, by subject."""

from collections.abc import Sequence

from fastapi import APIRouter

from hwqueue.server.routers import (
    bulk,
    events,
    explain,
    lease_logs,
    leases,
    match,
    me,
    nodes,
    queues,
    tasks,
    views,
    webhooks,
)

ROUTERS: Sequence[APIRouter] = (
    me.router,
    leases.router,
    lease_logs.router,
    bulk.router,
    queues.router,
    tasks.router,
    nodes.router,
    match.router,
    explain.router,
    views.router,
    events.router,
    webhooks.router,
)
