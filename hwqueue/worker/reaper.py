"""Upkeep: every worker does a little of it, now and then.

`reap` brings back what nobody settles. An empty claim reaps a few expired claims by itself; where
all workers are busy, or wait long between claims, these calls find them. `prune` deletes what is
kept no longer. Each skips what others hold. However many workers there are, one of them at a time
does the work; the calls of the others cost next to nothing.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from datetime import timedelta

import psycopg

from hwqueue.errors import HwqueueError
from hwqueue.worker.session import NodeSession

_log = logging.getLogger("hwqueue.worker")

_REAPS_PER_INTERVAL = 5
"""How often many workers together reap in the time in which one of them calls once."""
_PRUNES_PER_INTERVAL = 2
_PRUNED_PER_CALL = 5000
"""Rows of each kind: a transaction of well under a second, mostly."""
_PRUNES_PER_TURN = 60


async def reap_regularly(session: NodeSession, interval: timedelta) -> None:
    """Call `reap` about once an interval until cancelled. SQL: reap."""

    async def reap() -> None:
        expired = await _reap(session, interval / _REAPS_PER_INTERVAL)
        if expired:
            _log.info("%d claims had expired, their leases go on elsewhere", expired)

    await regularly("reap", interval, reap)


async def prune_regularly(session: NodeSession, interval: timedelta) -> None:
    """Call `prune` about once an interval until cancelled. SQL: prune."""
    await regularly("prune", interval, lambda: _prune(session, interval / _PRUNES_PER_INTERVAL))


async def regularly(what: str, interval: timedelta, work: Callable[[], Awaitable[None]]) -> None:
    """Do some work about once an interval until cancelled; what the database refuses is logged."""
    while True:
        await asyncio.sleep(interval.total_seconds() * random.uniform(0.5, 1.5))
        try:
            await work()
        except (HwqueueError, psycopg.Error) as error:
            _log.warning("%s was refused: %s", what, error)


async def _reap(session: NodeSession, unless_within: timedelta) -> int:
    """Reap, if nobody has just done so, until nothing is left; how many claims had expired."""
    reaped = await session.reap(unless_within)
    expired = reaped.expired
    while reaped.more:
        reaped = await session.reap(timedelta(0))
        expired += reaped.expired
    return expired


async def _prune(session: NodeSession, unless_within: timedelta) -> None:
    """Prune, if nobody has just done so, in small calls; what is left then waits for the next."""
    for _ in range(_PRUNES_PER_TURN):
        pruned = await session.prune(_PRUNED_PER_CALL, unless_within)
        if not pruned.more:
            break
        unless_within = timedelta(0)
