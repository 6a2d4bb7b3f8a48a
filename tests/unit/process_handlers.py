"""Handlers that the process tests run in children."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from hwqueue.app import App, Cancelled, Reject
from hwqueue.handler.context import AsyncLeaseContext, LeaseContext

app = App()

# Looked at while the module is imported, as CUDA libraries do.
VISIBLE_AT_IMPORT = os.environ.get("CUDA_VISIBLE_DEVICES")
CPUS_AT_IMPORT = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


@app.task("see", process=True)
def see(params: Any, context: LeaseContext) -> dict[str, Any]:
    print("on standard output, which is not the way results go")
    return {
        "params": params,
        "attempt": context.attempt,
        "visible": VISIBLE_AT_IMPORT,
        "cpus": CPUS_AT_IMPORT,
        "pid": os.getpid(),
        "stdin": sys.stdin.read(),
    }


@app.task("see-async", process=True)
async def see_async(params: Any, context: AsyncLeaseContext) -> str:
    await asyncio.sleep(0)
    return str(context.lease_id)


@app.task("reject", process=True)
def reject(params: Any) -> None:
    raise Reject("never")


@app.task("extend", process=True)
def extend(params: Any, context: LeaseContext) -> None:
    context.extend(params)


@app.task("die", process=True)
def die(params: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@app.task("leave", process=True)
def leave(params: Any) -> None:
    os._exit(3)


@app.task("exit", process=True)
def exit_politely(params: Any) -> None:
    sys.exit("out of work")


@app.task("wait", process=True)
def wait(params: dict[str, str]) -> None:
    """Say that it runs, wait for ever, say that it was told to stop."""
    try:  # the signal may come as soon as the file is there
        Path(params["started"]).write_text(str(os.getpid()))
        time.sleep(600)
    except Cancelled:
        Path(params["stopped"]).touch()
        raise


@app.task("wait-in-a-call", process=True)
def wait_in_a_call(params: dict[str, str]) -> None:
    """Wait in a call that does not see the signal: another thread got it."""

    threading.Timer(0.5, lambda: signal.pthread_kill(threading.get_ident(), signal.SIGTERM)).start()
    wait.handler(params)


@app.task("wait-async", process=True)
async def wait_async(params: dict[str, str]) -> None:
    Path(params["started"]).write_text(str(os.getpid()))
    try:
        await asyncio.sleep(600)
    except asyncio.CancelledError:
        Path(params["stopped"]).touch()
        raise


@app.task("finish-anyway", process=True)
def finish_anyway(params: dict[str, str]) -> str:
    try:
        Path(params["started"]).touch()
        time.sleep(600)
    except Cancelled:
        return "saved"
    return "slept"


@app.task("stubborn", process=True)
def stubborn(params: dict[str, str]) -> None:
    """Ignore SIGTERM, and have a child of its own."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    with subprocess.Popen(["sleep", "600"]) as child:
        Path(params["started"]).write_text(f"{os.getpid()} {child.pid}")


@app.task("leave-behind", process=True)
def leave_behind(params: dict[str, str]) -> str:
    """Start a program, do not wait for it."""
    child = subprocess.Popen(["sleep", "600"])
    Path(params["started"]).write_text(str(child.pid))
    return "left one behind"


@app.task("fork", process=True)
def fork(params: dict[str, str]) -> str:
    """Leave a copy of this process behind, which holds all that is open here."""
    pid = os.fork()
    if pid == 0:
        time.sleep(600)
    Path(params["started"]).write_text(str(pid))
    return "forked"


@app.task("return-twice", process=True)
def return_twice(params: Any) -> str:
    """Return in a forked copy, too, and there first."""
    pid = os.fork()
    if pid == 0:
        return "the copy"
    os.waitpid(pid, 0)
    return "the handler"


@app.task("escape", process=True)
def escape(params: dict[str, str]) -> None:
    """Die while a copy that has left the process group holds all that is open here."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        Path(params["started"]).write_text(str(os.getpid()))
        time.sleep(600)
    while not Path(params["started"]).exists():
        time.sleep(0.01)
    os._exit(3)
