"""The routes of the API, by subject."""

from collections.abc import Sequence

from fastapi import APIRouter

from hwqueue.server.routers import (
    bulk,
    events,
    everywhere,
    explain,
    gangs,
    lease_logs,
    leases,
    match,
    me,
    nodes,
    planner,
    queues,
    runs,
    signals,
    tasks,
    views,
    webhooks,
    workflows,
)

ROUTERS: Sequence[APIRouter] = (
    me.router,
    leases.router,
    lease_logs.router,
    signals.router,
    bulk.router,
    queues.router,
    tasks.router,
    workflows.router,
    runs.router,
    gangs.router,
    everywhere.router,
    nodes.router,
    match.router,
    explain.router,
    planner.router,
    views.router,
    events.router,
    webhooks.router,
)
