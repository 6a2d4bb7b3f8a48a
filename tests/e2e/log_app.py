"""Handlers that log, for tests/e2e/test_worker_progress.py."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

from hwqueue import App, AsyncLeaseContext, LeaseContext

app = App(keep_logs="info")
shop = logging.getLogger("shop")
shop.setLevel(logging.INFO)  # a child process has no set-up of its own here
BIG = 10**400


def say(context: LeaseContext | AsyncLeaseContext) -> None:
    """One line of each kind, and what no database takes."""
    context.log("texture missing", "warning", frame=7)
    context.log("\0\ud800\x1b" + "x" * 1_000_000, where=Path("/a\0b"), ratio=float("nan"), big=BIG)


def fail() -> None:
    """Records of Python's logging, the last with a traceback."""
    shop.debug("not kept")
    shop.info("three of %d", 4, extra={"order": 7})
    try:
        raise OSError("disk is full")
    except OSError:
        shop.exception("gave up")


@app.task("talk")
async def talk(folder: str, context: AsyncLeaseContext) -> None:
    say(context)
    while not (Path(folder) / "go").exists():
        await asyncio.sleep(0.01)
    fail()


@app.task("talk-process", process=True)
def talk_until(folder: str, context: LeaseContext) -> None:
    """The same in a thread or a process."""
    say(context)
    while not (Path(folder) / "go").exists():
        time.sleep(0.01)
    fail()


app.task("talk-sync")(talk_until.handler)


@app.task("chatter", process=True)
def chatter(lines: int, context: LeaseContext) -> None:
    for number in range(1, lines + 1):
        context.log(f"line {number}")
