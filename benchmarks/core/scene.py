"""What a database holds when a node claims from it: said as data, made by `prepare`."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg

from benchmarks.core import flows
from benchmarks.core.claimer import Claimer
from benchmarks.core.fill import QUEUE, Lease, fill, kind, spawn
from benchmarks.core.node import register, register_on
from benchmarks.core.queue import create_queue
from benchmarks.core.run import Run
from benchmarks.core.server import calm_down, outlive, put_in_force

_FLOW = "scene"


@dataclass(frozen=True)
class Scene:
    """A queue, a node that claims from it, and what could be in its way.

    Attributes:
        waiting: How many leases the node may run; they are of all `kinds` in turn.
        kinds: Differ in class or priority.
        ahead: How many leases are older than those, of `ahead_kinds`, and not for the node.
        node: What the node registers with, e.g. {"labels": ...}.
        held: A lease that the node runs all the time.
        others: What other nodes register with.
        others_claim: Whether each of them has claimed once, so that what it may run is remembered.
        policy: The queue's.
        steps: What waits are steps of runs of this graph instead; `kinds` are not used.
        done: How many leases more there were, which the node has settled before.
    """

    waiting: int
    kinds: Sequence[Lease] = (kind(),)
    ahead: int = 0
    ahead_kinds: Sequence[Lease] = ()
    node: Mapping[str, Any] = field(default_factory=dict)
    held: Lease | None = None
    others: Sequence[Mapping[str, Any]] = ()
    others_claim: bool = False
    policy: Mapping[str, Any] = field(default_factory=dict)
    steps: flows.Steps = ()
    done: int = 0

    def prepare(self, run: Run, dsn: str) -> Claimer:
        """Fill a database and return who claims there. The caller closes it."""
        create_queue(dsn, **self.policy)
        claimer = Claimer(dsn, register(dsn, 0, **self.node))
        if self.held is not None:
            with psycopg.connect(dsn, autocommit=True) as connection:
                spawn(connection, [self.held])
            claimer.take()
        if self.ahead:
            fill(run, dsn, self.ahead_kinds, self.ahead)
        if self.steps:
            flows.define(dsn, _FLOW, self.steps)
            flows.submit_many(dsn, _FLOW, math.ceil(self.waiting / flows.at_once(self.steps)))
            flows.release(claimer.connection)
        else:
            fill(run, dsn, self.kinds, self.waiting)
        put_in_force(dsn)
        if self.done:
            claimer.exchange_many(self.done)
        self._register_others(run, dsn)
        calm_down(dsn)
        outlive(dsn)
        return claimer

    def _register_others(self, run: Run, dsn: str) -> None:
        with psycopg.connect(dsn, autocommit=True) as connection:
            for number, spec in enumerate(run.track(self.others, "other nodes"), 1):
                node = register_on(connection, number, spec)
                if self.others_claim:
                    connection.execute(
                        "select hwqueue.claim_task(array[%s], %s, %s)",
                        [QUEUE, node.node_id, node.epoch],
                        prepare=True,
                    )
