"""Bind the lease to whatever a handler logs with structlog.

Run: HWQUEUE_DSN=$(hwqueue db url) python middleware_structlog.py
"""

from typing import Any

import example_worker
import structlog

import hwqueue

app = hwqueue.App()
log = structlog.get_logger()


@app.middleware
def bind(call_next: Any, context: hwqueue.LeaseContext) -> Any:
    with structlog.contextvars.bound_contextvars(
        lease_id=str(context.lease_id), task=context.task_name, attempt=context.attempt
    ):
        return call_next(context)


@app.middleware
async def bind_async(call_next: Any, context: hwqueue.AsyncLeaseContext) -> Any:
    with structlog.contextvars.bound_contextvars(
        lease_id=str(context.lease_id), task=context.task_name, attempt=context.attempt
    ):
        return await call_next(context)


@app.task("draw", queue="drawings")
def draw(params: Any) -> None:
    log.info("drawing", frame=params)


@app.task("draw-async", queue="drawings")
async def draw_async(params: Any) -> None:
    log.info("drawing", frame=params)


if __name__ == "__main__":
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.JSONRenderer(sort_keys=True),
        ]
    )
    example_worker.run(app, draw, 7)
    example_worker.run(app, draw_async, 8)
