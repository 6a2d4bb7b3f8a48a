"""Upkeep: what every worker does a little of, now and then, beside running handlers.

`reap` brings back what nobody settles. An empty claim reaps a few expired claims by itself; where
all workers are busy, or wait long between claims, these calls find them. `prune` deletes what is
kept no longer. Each skips what others hold. However many workers there are, one of them at a time
does the work; the calls of the others cost next to nothing.

Runs of workflows are advanced after settlements. Two settlements of one run at the same moment do
not wait for each other: one of them leaves what it could not count. `reap` finds that about once a
second; a call after the settlement finds it at once, and holds up no claim. Of two workers the one
that commits later finds what both have left.

Schedules with cron expressions have no times until a worker has computed them (`due_plans`).

A worker whose app has hooks for dead leases asks for those that died without a handler: by a claim
that expired, a deadline that passed. Each goes to one such worker that serves its queue and task.
And a worker with a tracer provider takes the ends of runs that were traced at their submission, and
sends their spans: once, however many workers there are. The call that ends a run may be anybody's,
an operator's or that of a worker without a provider.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any

import psycopg

from hwqueue import tracing
from hwqueue.app import App
from hwqueue.client import AsyncClient
from hwqueue.error_text import error_line
from hwqueue.errors import HwqueueError
from hwqueue.logs import about
from hwqueue.types import Death
from hwqueue.worker.report import tell
from hwqueue.worker.session import NodeSession

_log = logging.getLogger("hwqueue.worker")

_REAPS_PER_INTERVAL = 5
"""How often many workers together reap in the time in which one of them calls once."""
_REST = 3
"""How many times as long as a call of `reap` the rest after it is."""
_PRUNES_PER_INTERVAL = 2
_PRUNED_PER_CALL = 5000
"""Rows of each kind: a transaction of well under a second, mostly."""
_PRUNES_PER_TURN = 60
_DEATHS_PER_CALL = 20
"""Few: a worker that ends calls no hook for those that it has taken and not come to."""
_RUNS_PER_CALL = 100
_REAPS_PER_PLAN = 12
"""A new schedule of SQL waits a minute for its times at most; clients plan those that they make."""
_LEAST_SECONDS = 0.05
"""Between two calls of a worker that advance runs."""


async def reap_regularly(session: NodeSession, interval: timedelta) -> None:
    """Call `reap` about once an interval until cancelled, until nothing is left. SQL: reap.

    After a call that found expired claims the next one comes at once. After others it rests: what
    one tenant has left, thousands of nested runs for example, takes a quarter of a core from all.
    """

    async def reap() -> None:
        clock = asyncio.get_running_loop().time
        unless_within, expired, is_over = interval / _REAPS_PER_INTERVAL, 0, False
        while not is_over:
            begun = clock()
            reaped = await session.call(AsyncClient.reap, unless_within=unless_within)
            unless_within, expired, is_over = timedelta(0), expired + reaped.expired, not reaped.more
            if not (is_over or reaped.expired):
                await asyncio.sleep(min(_REST * (clock() - begun), interval.total_seconds()))
        if expired:
            _log.info("%d claims had expired, their leases go on elsewhere", expired)

    await _regularly("reap", interval, reap)


async def prune_regularly(session: NodeSession, interval: timedelta) -> None:
    """Call `prune` about once an interval, in small calls; what is left then waits. SQL: prune."""

    async def prune() -> None:
        unless_within = interval / _PRUNES_PER_INTERVAL
        for _ in range(_PRUNES_PER_TURN):
            pruned = await session.call(
                AsyncClient.prune, limit=_PRUNED_PER_CALL, unless_within=unless_within
            )
            if not pruned.more:
                break
            unless_within = timedelta(0)

    await _regularly("prune", interval, prune)


async def plan_regularly(session: NodeSession, interval: timedelta) -> None:
    """Plan the times of cron schedules now and then, until cancelled. SQL: due_plans, plan_schedule."""

    async def plan() -> None:
        await session.call(AsyncClient.plan_schedules)

    await _regularly("plan schedules", interval * _REAPS_PER_PLAN, plan)


async def send_run_spans(session: NodeSession, interval: timedelta) -> None:
    """Send spans of runs about once an interval, until cancelled. SQL: take_ended_runs."""

    async def send() -> None:
        while runs := await session.call(AsyncClient.take_ended_runs, limit=_RUNS_PER_CALL):
            for run in runs:
                tracing.run_ended(run)

    await _regularly("take ended runs", interval, send)


async def hear_deaths(session: NodeSession, app: App, interval: timedelta) -> None:
    """Take deaths about once an interval and call the hooks, until cancelled. SQL: take_deaths."""

    async def take() -> None:
        while deaths := await session.take_deaths(_DEATHS_PER_CALL):
            for death in deaths:
                await _tell(app, death)

    await _regularly("take deaths", interval, take)


async def _tell(app: App, death: Death) -> None:
    claim, error = death.claim, _error(death)
    tell(logging.ERROR, claim, " is dead: %s", error["message"])
    with about(claim):
        await app.call_hooks("dead", claim, error)


def _error(death: Death) -> Mapping[str, Any]:
    """What was kept as its error, with a `type` and a `message` as those of handlers have."""
    reason = str(death.error.get("reason"))
    return {"type": reason, "message": error_line(death.error), **death.error}


async def advance_after_steps(session: NodeSession) -> None:
    """Advance runs whenever steps were settled, until cancelled. SQL: advance_workflows."""
    while True:
        await session.steps_settled.wait()
        session.steps_settled.clear()
        try:
            advanced = await session.call(AsyncClient.advance_workflows)
        except (HwqueueError, psycopg.Error) as error:
            _log.warning("advance_workflows was refused: %s", error)
        else:
            if advanced.more and advanced.released:  # else others hold what is left
                session.steps_settled.set()
        await asyncio.sleep(_LEAST_SECONDS)


async def _regularly(what: str, interval: timedelta, work: Callable[[], Awaitable[None]]) -> None:
    """Do some work about once an interval until cancelled; what the database refuses is logged."""
    while True:
        await asyncio.sleep(interval.total_seconds() * random.uniform(0.5, 1.5))
        try:
            await work()
        except (HwqueueError, psycopg.Error) as error:
            _log.warning("%s was refused: %s", what, error)
