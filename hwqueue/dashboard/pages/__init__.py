"""The pages, a module for each tab."""

from hwqueue.dashboard.pages import (
    classes,
    events,
    fleet,
    jump,
    leases,
    overview,
    pending,
    queues,
    system,
    try_it,
    webhooks,
)

ROUTES = [
    *overview.ROUTES,
    *pending.ROUTES,
    *fleet.ROUTES,
    *leases.ROUTES,
    *queues.ROUTES,
    *classes.ROUTES,
    *events.ROUTES,
    *try_it.ROUTES,
    *system.ROUTES,
    *webhooks.ROUTES,
    *jump.ROUTES,
]
