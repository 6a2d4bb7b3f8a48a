"""The pages, a module for each tab."""

from hwqueue.dashboard.pages import (
    classes,
    events,
    fleet,
    gangs,
    items,
    jump,
    leases,
    overview,
    pending,
    queues,
    runs,
    system,
    try_it,
    webhooks,
    workflows,
)

ROUTES = [
    *overview.ROUTES,
    *pending.ROUTES,
    *fleet.ROUTES,
    *leases.ROUTES,
    *gangs.ROUTES,
    *runs.ROUTES,
    *items.ROUTES,
    *workflows.ROUTES,
    *queues.ROUTES,
    *classes.ROUTES,
    *events.ROUTES,
    *try_it.ROUTES,
    *system.ROUTES,
    *webhooks.ROUTES,
    *jump.ROUTES,
]
