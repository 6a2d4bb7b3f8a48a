"""Spans of runs of workflows: sent by one of the workers that have a tracer provider.

The call that ends a run may be anybody's, an operator's or that of a worker without a provider. So
the end of a run that was traced at its submission is left in a table, and the worker that takes it
sends the span: once, however many workers there are.
"""

from __future__ import annotations

from datetime import timedelta

from hwqueue import tracing
from hwqueue.worker.reaper import regularly
from hwqueue.worker.session import NodeSession

_TAKEN_PER_CALL = 100


async def send_run_spans(session: NodeSession, interval: timedelta) -> None:
    """Send spans of runs about once an interval, until cancelled. SQL: take_ended_runs."""

    async def send() -> None:
        while runs := await session.take_ended_runs(_TAKEN_PER_CALL):
            for run in runs:
                tracing.run_ended(run)

    await regularly("take ended runs", interval, send)
