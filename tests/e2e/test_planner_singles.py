"""What the planner remembers of single leases that it has reserved: nodes may not fetch them."""

import asyncio
from datetime import timedelta

import pytest

from hwqueue.client import AsyncClient, Client
from hwqueue.planner import Settings
from hwqueue.planner.singles import Singles
from hwqueue.testing import Clock
from tests.e2e.test_planner import World

HOLD = timedelta(seconds=3)


class Rounds:
    """Rounds of single leases alone; `now` is the planner's own clock."""

    def __init__(self, client: AsyncClient, epoch: int, queue: str) -> None:
        self.now = 0.0
        self._epoch, self._number = epoch, 0
        settings = Settings(queues=[queue], lease_hold=HOLD)
        self.singles = Singles(client, settings, lambda: False, lambda: self.now)

    async def another(self) -> dict[str, int]:
        self._number += 1
        return dict(await self.singles.assign(self._number, self._epoch))


def expire(client: Client, clock: Clock, world: World) -> None:
    """Let reservations run out, and upkeep end them; the nodes live on."""
    clock.advance(timedelta(minutes=1))
    client.reap()
    for node_id, epoch in world.nodes:
        client.heartbeat_node(node_id, epoch)


def test_what_is_not_fetched_is_reserved_once(dsn: str, clock: Clock) -> None:
    """And its nodes get nothing else for 19 times as long as they held it."""
    clock.freeze()

    async def rounds(client: Client, world: World, epoch: int) -> None:
        async with AsyncClient(dsn, pool_size=1) as planning:
            each = Rounds(planning, epoch, "once")
            assert await each.another() == {"proposed": 2, "reserved": 2}
            each.now = 1.0
            assert await each.another() == {}  # they are in no queue now
            expire(client, clock, world)
            each.now = 3.0
            assert await each.another() == {"expired": 2}
            for lease in world.affinity:
                client.cancel_lease(lease)
            world.spawn()
            each.now = 3.0 + 19 * 3.0 - 1
            assert (await each.another(), each.singles.resting) == ({}, 2)
            each.now += 1
            assert await each.another() == {"proposed": 2, "reserved": 2}
            assert each.singles.resting == 0
            world.value()
            assert await each.another() == {"fetched": 2}

    with Client(dsn) as client:
        epoch = client.lead_planner("me", ttl=timedelta(hours=1))
        assert epoch is not None
        asyncio.run(rounds(client, World(client, "once"), epoch))


def test_a_lease_that_came_back_is_left_to_claims(dsn: str, clock: Clock) -> None:
    """However long it waits, and though no node had room for it meanwhile."""
    clock.freeze()

    async def rounds(client: Client, world: World, epoch: int) -> None:
        async with AsyncClient(dsn, pool_size=1) as planning:
            each = Rounds(planning, epoch, "back")
            assert (await each.another())["reserved"] == 2
            expire(client, clock, world)
            assert await each.another() == {"expired": 2}
            for node_id, _epoch in world.nodes:  # the plan sees neither leases nor nodes
                client.cordon_node(node_id)
            assert await each.another() == {}
            for node_id, _epoch in world.nodes:
                client.uncordon_node(node_id)
            each.now = 1000.0
            assert (await each.another(), each.singles.resting) == ({}, 0)
            assert world.value() == pytest.approx(100 * 100 / 190)

    with Client(dsn) as client:
        epoch = client.lead_planner("me", ttl=timedelta(hours=1))
        assert epoch is not None
        asyncio.run(rounds(client, World(client, "back"), epoch))


def test_a_round_reserves_a_bounded_number(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hwqueue.planner.singles._MOST", 1)

    async def rounds(epoch: int) -> None:
        async with AsyncClient(dsn, pool_size=1) as planning:
            each = Rounds(planning, epoch, "few")
            assert await each.another() == {"proposed": 2, "too_many": 1, "reserved": 1}

    with Client(dsn) as client:
        World(client, "few")
        epoch = client.lead_planner("me", ttl=timedelta(hours=1))
        assert epoch is not None
        asyncio.run(rounds(epoch))
