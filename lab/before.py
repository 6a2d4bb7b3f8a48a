"""Is a plain claim as quick as it was at an older commit?

Both schemas are on one server, each in a database of its own. Their sessions take turns call by
call, so that what else the machine does hits both alike.
"""

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated

import psycopg
import typer

from benchmarks.core.fill import QUEUE, kind, spawn
from benchmarks.core.node import register
from benchmarks.core.queue import create_queue
from benchmarks.core.report import Answer, Figure, at_most
from benchmarks.core.run import Run
from benchmarks.core.scratch import scratch_database
from benchmarks.core.server import calm_down, machine, server
from benchmarks.core.sessions import CLAIM, COMPLETE
from benchmarks.core.spread import percentile
from benchmarks.core.usage import cpu_seconds, server_process

AIM = at_most(1.02)

_WARM_UP = 500


@dataclass
class Block:
    """What calls took, in milliseconds, and the server for all of them, in seconds."""

    claims: list[float] = field(default_factory=list)
    settlements: list[float] = field(default_factory=list)
    cpu: float = 0.0


class Side:
    """A session on a database of its own, with a node and a backlog of plain leases."""

    def __init__(self, dsn: str, leases: int) -> None:
        create_queue(dsn)
        self._node = register(dsn)
        self.connection = psycopg.connect(dsn, autocommit=True)
        spawn(self.connection, [kind()] * leases)
        calm_down(dsn)
        self._process = server_process(self.connection)

    def step(self, block: Block) -> None:
        """Claim a lease and complete it."""
        before_claim = time.perf_counter()
        [(lease, token, _)] = self.connection.execute(
            CLAIM, [QUEUE, self._node.node_id, self._node.epoch, 1], prepare=True
        ).fetchall()
        after_claim = time.perf_counter()
        self.connection.execute(COMPLETE, [lease, token], prepare=True)
        block.claims.append(1000 * (after_claim - before_claim))
        block.settlements.append(1000 * (time.perf_counter() - after_claim))

    def cpu(self) -> float:
        """Seconds that its server process has worked; 0 where it cannot be seen."""
        return cpu_seconds(self._process)


def before(
    ctx: typer.Context,
    *,
    checkout: Annotated[
        Path, typer.Option(help="Working tree of the older commit", exists=True, file_okay=False)
    ],
    pairs: Annotated[int, typer.Option(help="Claims of a side in a block", min=1)] = 1_000,
    blocks: Annotated[int, typer.Option(help="Blocks; each gives a ratio", min=3)] = 20,
) -> Answer:
    """Claim and settlement p50 of plain leases over those at an older commit."""
    run = Run.of(ctx)
    leases = pairs * blocks + _WARM_UP
    with ExitStack() as closing:
        base = closing.enter_context(server(run.dsn))
        older = partial(_upgrade_from, checkout)
        dsns = (
            closing.enter_context(scratch_database(base)),
            closing.enter_context(scratch_database(base, upgraded_by=older)),
        )
        sides = [Side(dsn, leases) for dsn in dsns]
        for side in sides:
            closing.callback(side.connection.close)
        _turns(sides, _WARM_UP)
        now, then = zip(*(_turns(sides, pairs) for _ in run.track(range(blocks), "blocks")), strict=True)
        facts = machine(dsns[0])
    figures = [
        _against("claim_task", [b.claims for b in now], [b.claims for b in then]),
        _against("complete_lease", [b.settlements for b in now], [b.settlements for b in then]),
    ]
    if all(block.cpu for block in then):
        seconds, bases = [b.cpu for b in now], [b.cpu for b in then]
        both = Figure.against("both", "server CPU s", values=seconds, bases=bases, aim=AIM)
        figures.append(both)
    compared = "plain leases now / at the older commit"
    return Answer("before", compared, tuple(figures), ctx.params, facts)


def _turns(sides: Sequence[Side], pairs: int) -> tuple[Block, ...]:
    """Let the sides take turns, pair by pair, each as often first as last."""
    blocks = tuple(Block() for _ in sides)
    starts = [side.cpu() for side in sides]
    both = list(zip(sides, blocks, strict=True))
    for number in range(pairs):
        for side, block in both if number % 2 else reversed(both):
            side.step(block)
    for side, block, start in zip(sides, blocks, starts, strict=True):
        block.cpu = side.cpu() - start
    return blocks


def _against(case: str, now: Sequence[list[float]], then: Sequence[list[float]]) -> Figure:
    values, bases = ([percentile(block, 50) for block in side] for side in (now, then))
    return Figure.against(case, "p50 ms", values=values, bases=bases, aim=AIM)


def _upgrade_from(checkout: Path, dsn: str) -> None:
    """Install the schema of another working tree, with this one's Python."""
    subprocess.run(
        [sys.executable, "-m", "hwqueue", "db", "upgrade"],
        cwd=checkout,
        env={**os.environ, "PYTHONPATH": str(checkout.resolve()), "HWQUEUE_DSN": dsn},
        check=True,
        stdout=subprocess.DEVNULL,
    )
