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
    route
    for tab in (
        *(overview, pending, fleet, leases, gangs, runs, items, workflows),
        *(queues, classes, events, try_it, system, webhooks, jump),
    )
    for route in tab.ROUTES
]
