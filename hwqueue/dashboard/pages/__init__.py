"""The pages, a module for each tab, which adds its own to `ROUTES` when it is imported."""

# ruff: noqa: F401

from hwqueue.dashboard.auth import ROUTES as ROUTES
from hwqueue.dashboard.pages import (
    events,
    fleet,
    gangs,
    jump,
    leases,
    limits,
    overview,
    pending,
    queues,
    runs,
    schedules,
    system,
    tenants,
    try_it,
    workflows,
)
