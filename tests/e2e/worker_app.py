"""The handlers of the worker tests. They tell the tests what they do through files in a folder."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

import hwqueue.app
from hwqueue import AsyncLeaseContext, Depends, GangContext, LeaseContext
from hwqueue.app import App, Cancelled, Reject, Retry, Snooze
from hwqueue.client import Client
from hwqueue.errors import BadArgument

app = App()
shop = logging.getLogger("shop")


def mark(params: dict[str, Any], name: str) -> None:
    """Leave a file for the test to see."""
    (Path(params["folder"]) / name).write_text(str(os.getpid()))


def has(params: dict[str, Any], name: str) -> bool:
    """Whether the test (or the handler) has left a file."""
    return (Path(params["folder"]) / name).exists()


@app.task("add")
async def add(params: dict[str, int]) -> int:
    return params["a"] + params["b"]


@app.task("add-sync")
def add_sync(params: dict[str, int]) -> int:
    return params["a"] + params["b"]


def paint(params: dict[str, Any], context: LeaseContext | AsyncLeaseContext) -> None:
    for frame in range(1, 41):
        context.progress(frame, f"frame {frame}", total=100)
    mark(params, "told")


@app.task("paint")
async def paint_async(params: dict[str, Any], context: AsyncLeaseContext) -> None:
    paint(params, context)
    while not has(params, "go"):
        await asyncio.sleep(0.01)
    context.progress(1)


# Of two tasks with one handler the one in a process is decorated: a child finds it by its name.
@app.task("paint-process", process=True)
def paint_until(params: dict[str, Any], context: LeaseContext) -> None:
    paint(params, context)
    while not has(params, "go"):
        time.sleep(0.01)
    context.progress(1)


app.task("paint-sync")(paint_until.handler)


@app.task("cpus-process", process=True)
def cpus(_params: Any, context: LeaseContext) -> dict[str, Any]:
    assert context.assignment is not None
    return {"given": context.assignment.cpus, "on": sorted(os.sched_getaffinity(0))}


app.task("cpus")(cpus.handler)


@app.task("flaky")
async def flaky(params: Any, context: AsyncLeaseContext) -> str:
    if context.attempt == 1:
        raise ValueError("the first attempt fails")
    if context.attempt == 2:
        raise Retry("so does the second", after=timedelta(0))
    return "done"


@app.task("reject")
def reject(params: Any) -> None:
    raise Reject("no way")


@app.task("not-json")
async def not_json(params: Any) -> object:
    return {"value": object()}


@app.task("large")
async def large(params: int) -> str:
    return "x" * params


@app.task("exit")
async def exit_worker(params: Any) -> None:
    raise SystemExit(7)


@app.task("cancel-itself-process", process=True)
def cancel_itself(params: Any) -> None:
    raise asyncio.CancelledError


app.task("cancel-itself")(cancel_itself.handler)


@app.task("slow", timeout=timedelta(milliseconds=100))
async def slow(params: Any) -> None:
    await asyncio.sleep(600)


@app.task("extend")
def extend(params: float, context: LeaseContext) -> str:
    return context.extend(timedelta(seconds=params)).isoformat()


@app.task("wait-async")
async def wait_async(params: dict[str, Any]) -> str:
    """Run until there is a file `go`."""
    mark(params, "started")
    try:
        while not has(params, "go"):
            await asyncio.sleep(0.01)
    except asyncio.CancelledError:
        mark(params, "cancelled")
        raise
    return "went"


@app.task("wait-sync")
def wait_sync(params: dict[str, Any], context: LeaseContext) -> str:
    mark(params, "started")
    while not has(params, "go"):
        time.sleep(0.01)
        try:
            context.raise_if_cancelled()
        except Cancelled:
            mark(params, "cancelled")
            raise
    return "went"


@app.task("wait-process", process=True)
def wait_process(params: dict[str, Any]) -> str:
    mark(params, "started")
    try:
        while not has(params, "go"):
            time.sleep(0.01)
    except hwqueue.app.Cancelled:
        mark(params, "cancelled")
        raise
    return "went"


@app.task("stuck")
def stuck(params: dict[str, Any]) -> None:
    """A thread that nothing stops."""
    mark(params, "started")
    while True:
        time.sleep(0.05)


@app.task("run-out")
def run_out(params: Any) -> Any:
    """Raise what a future does not take."""
    return next(iter([]))


@app.task("late-process", process=True, timeout=timedelta(milliseconds=500))
def late_process(params: dict[str, Any]) -> None:
    """A process that ignores SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    mark(params, "started")
    time.sleep(600)


@app.task("boom")
async def boom(params: Any) -> None:
    raise RuntimeError(params or "smtp down")


@app.task("die", process=True)
def die(params: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@app.task("picky", placement={"require": [{"tags": {"gpu": True}}]}, max_attempts=1)
async def picky(params: Any) -> None:
    pass


@app.task("snooze")
def snooze(params: dict[str, Any], context: LeaseContext) -> int:
    """Put the lease off once; return the number of the attempt."""
    if has(params, "snoozed"):
        return context.attempt
    mark(params, "snoozed")
    raise Snooze("not\nyet", after=timedelta(seconds=params["seconds"]))


@app.task("logs")
async def logs(params: Any) -> None:
    shop.info("in the loop")


@app.task("logs-sync")
def logs_sync(params: Any) -> None:
    shop.info("in a thread")


@app.task("logs-process", process=True)
def logs_process(params: Any) -> None:
    shop.info("in a process")


@app.task("settles-itself")
def settles_itself(params: dict[str, Any], context: LeaseContext) -> None:
    """Complete the lease in a transaction of its own, as one does with the work's rows."""
    with Client(params["dsn"]) as client:
        client.complete_lease(context.lease_id, context.claim_token)
    if params.get("then") == "fail":
        raise RuntimeError("after the commit")


class Size(Enum):
    SMALL = "small"
    LARGE = "large"


@dataclass
class Picture:
    path: str
    size: Size
    at: datetime
    by: UUID | None = None


def lease_id(context: LeaseContext) -> UUID:
    return context.lease_id


def journal(by: UUID = Depends(lease_id)) -> Iterator[list[str]]:
    """Lines for a file named after the lease; it is written when the handler has ended."""
    lines: list[str] = []
    yield lines
    (Path(lines[0]) / str(by)).write_text("\n".join(lines))


async def journal_async(context: AsyncLeaseContext) -> AsyncIterator[list[str]]:
    lines: list[str] = []
    yield lines
    await asyncio.sleep(0)
    (Path(lines[0]) / str(context.lease_id)).write_text("\n".join(lines))


def drawn(lines: list[str], folder: str, size: Size, at: datetime, by: UUID) -> Picture:
    lines += [folder, size.value]
    return Picture(f"{folder}/1", size, at, by)


@app.task("draw-process", queue="work", process=True)
def draw(
    context: LeaseContext,
    folder: str,
    at: datetime,
    size: Size = Size.SMALL,
    lines: list[str] = Depends(journal),
) -> Picture:
    return drawn(lines, folder, size, at, context.lease_id)


@app.task("draw-process-async", queue="work", process=True)
async def draw_async(
    context: AsyncLeaseContext,
    folder: str,
    at: datetime,
    size: Size = Size.SMALL,
    lines: list[str] = Depends(journal_async),
) -> Picture:
    return drawn(lines, folder, size, at, context.lease_id)


app.task("draw", queue="work", priority=7, labels={"kind": "picture"})(draw.handler)
app.task("draw-async", queue="work")(draw_async.handler)


@app.task("picky-about-errors", queue="work", retry_on=OSError)
async def picky_about_errors(context: AsyncLeaseContext) -> None:
    if context.attempt == 1:
        raise ConnectionError("tried again")
    raise ValueError("for good")


@app.task("picky-process", queue="work", process=True, no_retry_on=ValueError)
def picky_process() -> None:
    raise ValueError("for good")


app.task("picky-thread", queue="work", no_retry_on=ValueError)(picky_process.handler)


@app.task("read-run")
def read_run(context: LeaseContext) -> dict[str, Any]:
    return {
        "run": str(context.run_id),
        "step": context.step_name,
        "input": context.run_input(),
        "result": context.result("a"),
        "all": [(each.item, each.result) for each in context.results("a")],
    }


@app.task("read-run-async")
async def read_run_async(context: AsyncLeaseContext) -> dict[str, Any]:
    return {
        "run": str(context.run_id),
        "step": context.step_name,
        "input": await context.run_input(),
        "result": await context.result("a"),
        "all": [(each.item, each.result) async for each in context.results("a")],
    }


@app.task("add-items-process", process=True)
def add_items(context: LeaseContext) -> list[int]:
    items = [{"name": f"i{n}", "params": {"a": n, "b": n}} for n in range(3)]
    return [each.item for each in context.add_items(items, task="add")]


app.task("add-items")(add_items.handler)


@app.task("add-items-async")
async def add_items_async(context: AsyncLeaseContext) -> list[int]:
    items = [{"name": f"i{n}", "task": "add", "params": {"a": n, "b": n}} for n in range(3)]
    return [each.item for each in await context.add_items(items)]


@app.task("read-no-run")
def read_no_run(context: LeaseContext) -> list[Any]:
    try:
        context.result("a")
    except BadArgument as error:
        return [context.run_id, context.step_name, context.run_input(), str(error)]
    return []


def arrive(params: dict[str, Any], context: LeaseContext | AsyncLeaseContext) -> GangContext:
    """Leave a file for the test, named after the rank and the run."""
    assert context.gang is not None
    mark(params, f"here-{context.gang.rank}-{context.claim_token}")
    return context.gang


def met(params: dict[str, Any], gang: GangContext) -> bool:
    """Whether handlers of all members run, or have run, and there is a file `go`."""
    names = [file.name for file in Path(params["folder"]).glob("here-*")]
    ranks = {int(name.split("-")[1]) for name in names}
    return len(ranks) == gang.size and has(params, "go")


def told(gang: GangContext) -> dict[str, Any]:
    return {
        "rank": gang.rank,
        "nodes": [member.node for member in gang.members],
        "leases": [str(member.lease_id) for member in gang.members],
        "addresses": [gang.address(rank) for rank in range(gang.size)],
        "environment": gang.environment(port=29500),
    }


@app.task("meet-async-process", process=True)
async def meet(params: dict[str, Any], context: AsyncLeaseContext) -> dict[str, Any]:
    """Run until all members of the gang do."""
    gang = arrive(params, context)
    while not met(params, gang):
        await asyncio.sleep(0.01)
    return told(gang)


@app.task("meet-process", process=True)
def meet_sync(params: dict[str, Any], context: LeaseContext) -> dict[str, Any]:
    gang = arrive(params, context)
    while not met(params, gang):
        time.sleep(0.01)
        context.raise_if_cancelled()
    return told(gang)


app.task("meet")(meet.handler)
app.task("meet-sync")(meet_sync.handler)


@app.task("alone")
async def alone(_params: Any, context: AsyncLeaseContext) -> bool:
    return context.gang is None
