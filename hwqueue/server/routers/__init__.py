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
    limits,
    match,
    me,
    nodes,
    planner,
    queues,
    runs,
    schedules,
    signals,
    tasks,
    tenants,
    views,
    webhooks,
    workers,
    workflows,
)

ROUTERS: Sequence[APIRouter] = tuple(
    subject.router
    for subject in (
        workers,  # first: routes are tried one by one, and these are called most often
        *(me, leases, lease_logs, signals, bulk, queues, tasks, workflows, runs),
        *(gangs, everywhere, nodes, match, explain, planner, views, events, webhooks, schedules, limits),
        tenants,
    )
)
