"""Bringing back what nobody settles: every worker does a little of it, now and then.

An empty claim reaps a few expired claims by itself. Where all workers are busy, or wait long
between claims, these calls find them; each skips what others hold. However many workers there are,
one of them at a time does the work; the calls of the others cost next to nothing.
"""

from __future__ import annotations

import asyncio
import logging
import random
from datetime import timedelta

import psycopg

from hwqueue.errors import HwqueueError
from hwqueue.worker.session import NodeSession

_log = logging.getLogger("hwqueue.worker")

_TURNS_PER_INTERVAL = 10
"""How often many workers together reap in the time in which one of them calls once."""


async def reap_regularly(session: NodeSession, interval: timedelta) -> None:
    """Call `reap` about once an interval until cancelled. SQL: reap."""
    while True:
        await asyncio.sleep(interval.total_seconds() * random.uniform(0.5, 1.5))
        try:
            expired = await _reap(session, interval / _TURNS_PER_INTERVAL)
        except (HwqueueError, psycopg.Error) as error:
            _log.warning("reap was refused: %s", error)
            continue
        if expired:
            _log.info("%d claims had expired, their leases go on elsewhere", expired)


async def _reap(session: NodeSession, unless_within: timedelta) -> int:
    """Reap, if nobody has just done so, until nothing is left; how many claims had expired."""
    reaped = await session.reap(unless_within)
    expired = reaped.expired
    while reaped.more:
        reaped = await session.reap(timedelta(0))
        expired += reaped.expired
    return expired
