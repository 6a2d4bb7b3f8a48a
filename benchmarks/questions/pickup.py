"""How long is it from a spawn to the start of the handler, when the worker has nothing to do?

The worker is `hwqueue worker run` with its defaults, in a process of its own: told by LISTEN, or
polling, directly or through PgBouncer in transaction mode. The handler returns the clock at its
start; the clock of the spawn is read before the call.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated
from uuid import UUID

import typer

from benchmarks.core import pooler
from benchmarks.core.fill import QUEUE, TASK
from benchmarks.core.options import Rounds
from benchmarks.core.queue import create_queue
from benchmarks.core.report import Answer, Figure
from benchmarks.core.run import Run
from benchmarks.core.server import databases, machine
from benchmarks.core.spread import Spread, percentile
from hwqueue import Client

_PATIENCE = timedelta(seconds=30)
_MOST_PAUSE_SECONDS = 0.05


@dataclass(frozen=True)
class Case:
    """A way to reach the database, and what the worker is told beside."""

    name: str
    dsn: str
    options: tuple[str, ...] = ()


def pickup(
    ctx: typer.Context,
    *,
    spawns: Annotated[int, typer.Option(help="Leases of each case in a round", min=1)] = 100,
    rounds: Rounds = 3,
) -> Answer:
    """Milliseconds from spawn to the start of the handler, with an idle worker / told by LISTEN."""
    run = Run.of(ctx)
    with ExitStack() as stack:
        told, polling, pooled = stack.enter_context(databases(run.dsn, 3))
        cases = [Case("LISTEN", told), Case("--listen off", polling, ("--listen", "off"))]
        notes = []
        for dsn in (told, polling, pooled):
            create_queue(dsn)
        if pooler.installed():
            through = stack.enter_context(pooler.through_pooler(pooled))
            cases.append(Case("through PgBouncer", through))
        else:
            notes.append("pgbouncer is not installed, so nothing went through it")
        waits = [stack.enter_context(idle_worker(case)) for case in cases]
        taken: list[list[Sequence[float]]] = []
        for number in range(rounds):
            run.tell(f"round {number + 1} of {rounds}")
            taken.append([_milliseconds(client, spawns) for client in waits])
        figures = [_figure(case.name, index, taken) for index, case in enumerate(cases)]
        compared = "an idle worker with its defaults / told by LISTEN"
        return Answer("pickup", compared, tuple(figures), ctx.params, machine(told), tuple(notes))


@contextmanager
def idle_worker(case: Case) -> Iterator[Client]:
    """A worker that has run its first lease, and a client that spawns for it."""
    command = [
        *(sys.executable, "-m", "hwqueue", "worker", "run", "--no-detect"),
        *("--app", "benchmarks.core.stamping_app:app", "--queue", QUEUE, *case.options),
    ]
    environment = os.environ | {"HWQUEUE_DSN": case.dsn}
    with (
        Client(case.dsn, pool_size=1) as client,
        subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as worker,
    ):
        try:
            _wait_for(client, client.spawn_lease(QUEUE, TASK).lease_id)
            yield client
        finally:
            worker.terminate()


def _milliseconds(client: Client, spawns: int) -> Sequence[float]:
    """Of so many leases, each spawned when the one before has ended."""
    waits = []
    for _ in range(spawns):
        time.sleep(random.uniform(0, _MOST_PAUSE_SECONDS))
        begun = time.monotonic()
        lease_id = client.spawn_lease(QUEUE, TASK).lease_id
        waits.append((_wait_for(client, lease_id) - begun) * 1000)
    return waits


def _wait_for(client: Client, lease_id: UUID) -> float:
    """When its handler started."""
    lease = client.wait(lease_id, timeout=_PATIENCE)
    assert isinstance(lease.result, float), lease
    return lease.result


def _figure(name: str, case: int, rounds: Sequence[Sequence[Sequence[float]]]) -> Figure:
    """A case against the first one, round by round."""
    of_case = [each[case] for each in rounds]
    p50 = [percentile(waits, 50) for waits in of_case]
    more = {
        "p99 ms": Spread.of([percentile(waits, 99) for waits in of_case]),
        "most ms": Spread.of([max(waits) for waits in of_case]),
    }
    if case == 0:
        return Figure(name, "ms", Spread.of(p50), more=more)
    bases = [percentile(each[0], 50) for each in rounds]
    return Figure.against(name, "ms", values=p50, bases=bases, more=more)
