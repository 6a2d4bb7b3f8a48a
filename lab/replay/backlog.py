"""Backlog mode: everything waits from the start, and nodes ask until nothing fits any more."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable

from hwqueue.demo.fleet import Fleet
from hwqueue.demo.model import Trace
from hwqueue.demo.run import Drive, Driven, Watch
from lab.replay.demand import backlog_jobs


def backlog(*, demand_percent: float, seed: int, qty: int, ready: Callable[[], None] | None = None) -> Drive:
    """All jobs wait from the start, and nothing ends.

    ready: Returns when nodes may ask; None: at once.
    """

    async def drive(fleet: Fleet, trace: Trace, watch: Watch) -> Driven:
        watch("spawning leases", fleet)
        begun = time.perf_counter()
        await fleet.spawn(backlog_jobs(trace, demand_percent=demand_percent, seed=seed))
        spawned = time.perf_counter() - begun
        await catch_up(fleet)
        if ready is not None:
            watch("waiting for prices", fleet)
            await asyncio.to_thread(ready)
        watch("claiming", fleet)
        fleet.start_clock()
        await drain(fleet, seed=seed, qty=qty)
        return Driven(mode="backlog", spawn_seconds=spawned)

    return drive


async def catch_up(fleet: Fleet) -> None:
    """Let upkeep do what it does every few seconds in a queue that has a backlog.

    It finds out how many nodes could take a class; before, one is scored as if all could.
    """
    while (await fleet.clients[0].reap()).more:
        pass


async def drain(fleet: Fleet, *, seed: int, qty: int = 1) -> None:
    """Poll in rounds, every node once a round in random order, until nobody gets anything.

    A node that gets nothing drops out: nothing departs, so it would get nothing later, either. As a
    claim may overlook a lease that another claim holds at that moment, the end is a full round
    without a grant.
    """
    rng = random.Random(seed)
    asking = list(fleet.nodes)
    while True:
        rng.shuffle(asking)
        lucky = await fleet.poll_each(asking, qty)
        if not lucky and len(asking) == len(fleet.nodes):
            return
        asking = lucky or list(fleet.nodes)
