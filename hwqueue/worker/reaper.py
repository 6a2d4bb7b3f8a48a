"""Bringing back what nobody settles: every worker does a little of it, now and then.

An empty claim reaps a few expired claims by itself. Where all workers are busy, or wait long
between claims, these calls find them; each skips what others hold.
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


async def reap_regularly(session: NodeSession, interval: timedelta) -> None:
    """Call `reap` about once an interval until cancelled. SQL: reap."""
    while True:
        await asyncio.sleep(interval.total_seconds() * random.uniform(0.5, 1.5))
        try:
            reaped = await session.reap()
        except (HwqueueError, psycopg.Error) as error:
            _log.warning("reap was refused: %s", error)
            continue
        if reaped.expired:
            _log.info("%d claims had expired, their leases go on elsewhere", reaped.expired)
