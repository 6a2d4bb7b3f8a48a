"""Going on with runs of workflows whose steps this worker has settled.

Two settlements of one run at the same moment do not wait for each other: one of them leaves what
it could not count. `reap` finds that about once a second; a call after the settlement finds it at
once, and holds up no claim. Of two workers the one that commits later finds what both have left.
"""

from __future__ import annotations

import asyncio
import logging

import psycopg

from hwqueue.errors import HwqueueError
from hwqueue.worker.session import NodeSession

_log = logging.getLogger("hwqueue.worker")

LEAST_SECONDS = 0.05
"""Between two calls of a worker."""


async def advance_after_steps(session: NodeSession) -> None:
    """Advance runs whenever steps were settled, until cancelled. SQL: advance_workflows."""
    while True:
        await session.steps_settled.wait()
        session.steps_settled.clear()
        try:
            advanced = await session.advance_workflows()
        except (HwqueueError, psycopg.Error) as error:
            _log.warning("advance_workflows was refused: %s", error)
        else:
            if advanced.more and advanced.released:  # else others hold what is left
                session.steps_settled.set()
        await asyncio.sleep(LEAST_SECONDS)
