"""Handlers with durable steps. They tell the tests what they do through files in a folder."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from hwqueue import AsyncLeaseContext, LeaseContext, Retrying
from hwqueue.app import App

app = App()
HOUR = timedelta(hours=1)


def note(params: dict[str, Any], line: str) -> str:
    """Leave a line for the test to see."""
    with (Path(params["folder"]) / "lines").open("a") as lines:
        lines.write(line + "\n")
    return line


@app.task("order-process", process=True)
def order(params: dict[str, Any], context: LeaseContext) -> dict[str, Any]:
    paid = context.step("charge", note, params, "charge")
    try:
        packed = context.wait_for("packed", timeout=HOUR, near="self")
    except Exception as error:  # what suspends is none
        packed = note(params, type(error).__name__)
    again = context.step("charge", note, params, "again")
    return {"paid": paid, "packed": packed, "again": again}


app.task("order")(order.handler)


@app.task("order-async-process", process=True)
async def order_async(params: dict[str, Any], context: AsyncLeaseContext) -> dict[str, Any]:
    paid = await context.step("charge", note, params, "charge")
    try:
        packed = await context.wait_for("packed", timeout=HOUR, near="self")
    except Exception as error:
        packed = note(params, type(error).__name__)
    again = await context.step("charge", note, params, "again")
    return {"paid": paid, "packed": packed, "again": again}


app.task("order-async")(order_async.handler)


def busy(params: dict[str, Any]) -> str:
    """Fails twice."""
    note(params, "busy")
    if (Path(params["folder"]) / "lines").read_text().count("busy") < 3:
        raise ConnectionError("busy")
    return "done"


PATIENT = Retrying(3, timedelta(milliseconds=1), on=ConnectionError)


@app.task("flaky-process", process=True)
def flaky(params: dict[str, Any], context: LeaseContext) -> Any:
    return context.step("ask", busy, params, retry=PATIENT)


@app.task("flaky-async-process", process=True)
async def flaky_async(params: dict[str, Any], context: AsyncLeaseContext) -> Any:
    return await context.step("ask", busy, params, retry=PATIENT)


app.task("flaky")(flaky.handler)
app.task("flaky-async")(flaky_async.handler)


@app.task("nap")
def nap(params: dict[str, Any], context: LeaseContext) -> None:
    note(params, "begins")
    context.sleep(timedelta(milliseconds=1))
    context.sleep(HOUR)
    note(params, "ends")


@app.task("stops-between")
def stops_between(params: dict[str, Any], context: LeaseContext) -> None:
    context.step("first", note, params, "first")
    note(params, "between")
    while not (Path(params["folder"]) / "go").exists():
        time.sleep(0.01)
    context.step("second", note, params, "second")


@app.task("book")
def book(params: dict[str, Any], context: LeaseContext) -> bool:
    with context.transaction_step("book") as (connection, done):
        if not done:
            connection.execute("insert into booking values (%s)", [str(context.lease_id)])
    if params["fails"] and not done:
        raise ValueError("after the booking")
    return done


@app.task("book-async")
async def book_async(params: dict[str, Any], context: AsyncLeaseContext) -> bool:
    async with context.transaction_step("book") as (connection, done):
        if not done:
            await connection.execute("insert into booking values (%s)", [str(context.lease_id)])
    if params["fails"] and not done:
        raise ValueError("after the booking")
    return done
