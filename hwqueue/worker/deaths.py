"""Hooks for leases that died without a handler: a claim that expired, a deadline that passed.

Nobody settles those. A worker whose app has hooks for dead leases asks for them, about as often as
it reaps. Each goes to one such worker that serves its queue and task. A worker whose app has no
such hook makes no call.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from hwqueue.app import App
from hwqueue.error_text import error_line
from hwqueue.logs import about, lease_fields
from hwqueue.types import Death
from hwqueue.worker.reaper import regularly
from hwqueue.worker.session import NodeSession

_log = logging.getLogger("hwqueue.worker")

DEFAULT_INTERVAL = timedelta(seconds=10)
_TAKEN_PER_CALL = 20
"""Few: a worker that ends calls no hook for those that it has taken and not come to."""


async def hear_deaths(session: NodeSession, app: App, interval: timedelta) -> None:
    """Take deaths about once an interval and call the hooks, until cancelled. SQL: take_deaths."""

    async def take() -> None:
        while deaths := await session.take_deaths(_TAKEN_PER_CALL):
            for death in deaths:
                await _tell(app, death)

    await regularly("take deaths", interval, take)


async def _tell(app: App, death: Death) -> None:
    claim, error = death.claim, _error(death)
    _log.error(
        "lease %s of task %s is dead: %s",
        claim.lease_id,
        claim.task_name,
        error["message"],
        extra=lease_fields(claim),
    )
    with about(claim):
        await app.call_hooks("dead", claim, error)


def _error(death: Death) -> Mapping[str, Any]:
    """What was kept as its error, with a `type` and a `message` as those of handlers have."""
    reason = str(death.error.get("reason"))
    return {"type": reason, "message": error_line(death.error), **death.error}
