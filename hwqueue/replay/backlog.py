"""Backlog mode: everything waits from the start, and nodes ask until nothing fits any more."""

from __future__ import annotations

import random

from hwqueue.replay.fleet import Fleet


async def catch_up(fleet: Fleet) -> None:
    """Let upkeep do what it does every few seconds in a queue that has a backlog.

    Claims estimate how many nodes could take a class for 50 new ones at a time; `reap` for the
    rest. Without an estimate a class is scored as if all nodes could.
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
