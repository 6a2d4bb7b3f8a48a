"""An app with middleware of both kinds, for handlers in threads, in the loop and in processes."""

from __future__ import annotations

from typing import Any

from hwqueue import App, AsyncLeaseContext, LeaseContext

app = App()


@app.middleware
def doubles(call_next: Any, context: LeaseContext) -> Any:
    """Double the params and add one to the result."""
    return call_next(context.with_params(context.params * 2)) + 1


@app.middleware
async def doubles_async(call_next: Any, context: AsyncLeaseContext) -> Any:
    """The same around async handlers."""
    return await call_next(context.with_params(context.params * 2)) + 1


@app.task("process", process=True)
def in_process(params: int) -> int:
    return params


@app.task("process-async", process=True)
async def in_process_async(params: int) -> int:
    return params


app.task("sync")(in_process.handler)
app.task("async")(in_process_async.handler)


@app.task("fail")
def fail(params: int) -> None:
    raise RuntimeError("smtp down")
