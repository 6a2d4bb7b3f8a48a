"""Workers for the tests: in the test's own event loop, or in a process of their own."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import UUID

from hwqueue import App, Worker, WorkerSettings
from hwqueue.client import AsyncClient, Client
from hwqueue.types import Lease, LeaseState, RetryPolicy
from hwqueue.worker import run
from tests.e2e.worker_app import app

QUEUE = "work"
BOUND_SECONDS = 90.0
AT_ONCE = RetryPolicy(kind="fixed", base=timedelta(0))
RARELY = {"heartbeat_interval": timedelta(hours=1), "heartbeat_timeout": timedelta(hours=2)}


@dataclass
class Way:
    """How workers reach the queue: by a login of the database; or over HTTP, as a fixture says."""

    over_http: dict[str, str] = field(default_factory=dict)

    def settings(self, dsn: str) -> dict[str, Any]:
        """Those that say it."""
        if not self.over_http:
            return {"dsn": dsn}
        return self.over_http | {"token_file": Path(self.over_http["token_file"])}


WAY = Way()


def settings(dsn: str, **changes: Any) -> WorkerSettings:
    """Impatient settings; nothing of the machine is declared."""
    quick: dict[str, Any] = {
        **WAY.settings(dsn),
        "queues": (QUEUE,),
        "name": "node-1",
        "detect": False,
        "listen": "off",
        "poll_interval": timedelta(milliseconds=20),
        "heartbeat_interval": timedelta(milliseconds=100),
        "reap_interval": None,
        "shutdown_timeout": timedelta(seconds=10),
    }
    return WorkerSettings(**{**quick, **changes})


@asynccontextmanager
async def worker(dsn: str, of: App = app, /, **changes: Any) -> AsyncIterator[Worker]:
    """A worker in this event loop; stopped now at the end."""
    started = Worker(of, settings(dsn, **changes))
    working = asyncio.create_task(started.run())
    try:
        yield started
    finally:
        started.stop()
        started.stop()
        await asyncio.wait_for(working, BOUND_SECONDS)


@contextmanager
def worker_process(dsn: str, *, of: str = "worker_app", **changes: Any) -> Iterator[subprocess.Popen[str]]:
    """A worker in a process of its own, with the tasks of a module here; killed at the end if it runs."""
    given = json.dumps({**(WAY.over_http or {"dsn": dsn}), **changes})
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.e2e.worker_support", of, given], stderr=subprocess.PIPE, text=True
    )
    with process:  # waits for its end, so it has to be killed before
        try:
            yield process
        finally:
            process.kill()


async def ended(client: AsyncClient, lease_id: UUID) -> Lease:
    """The lease, once it is final."""
    final = (LeaseState.COMPLETED, LeaseState.FAILED, LeaseState.CANCELLED)
    async with asyncio.timeout(BOUND_SECONDS):
        while (lease := await client.get_lease(lease_id)).state not in final:
            await asyncio.sleep(0.02)
    return lease


async def works(client: AsyncClient, queue: str = QUEUE) -> None:
    """See that a worker runs what is spawned."""
    spawned = await client.spawn_lease(queue, "add", {"a": 1, "b": 2})
    assert (await ended(client, spawned.lease_id)).result == 3


async def run_one(
    client: AsyncClient, dsn: str, task: str, params: Any = None, *, of: App = app, **options: Any
) -> Lease:
    """A lease of this task, once a worker has run it to its end."""
    spawned = await client.spawn_lease(QUEUE, task, params, **options)
    async with worker(dsn, of):
        return await ended(client, spawned.lease_id)


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition, in an event loop."""
    async with asyncio.timeout(BOUND_SECONDS):
        while not condition():
            await asyncio.sleep(0.01)


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for a condition, outside of one."""
    deadline = time.monotonic() + BOUND_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true"
        time.sleep(0.01)


def is_in(client: Client, lease_id: UUID, state: LeaseState) -> Callable[[], bool]:
    """The condition that a lease is in a state."""
    return lambda: client.get_lease(lease_id).state is state


def main() -> int:
    """Run a worker; spans come as seconds."""
    logging.basicConfig(level=logging.INFO)
    tasks, given = import_module(f"tests.e2e.{sys.argv[1]}").app, json.loads(sys.argv[2])
    given["queues"] = tuple(given.get("queues", [QUEUE]))
    WAY.over_http = {name: given.pop(name) for name in ("url", "token_file") if name in given}
    for name in given:
        if name.endswith(("_interval", "_timeout", "_grace")):
            given[name] = timedelta(seconds=given[name])
    return run(tasks, settings(given.pop("dsn", ""), **given))


if __name__ == "__main__":
    sys.exit(main())
