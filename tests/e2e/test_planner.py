"""hwqueue planner: processes of which one leads, and what their end does."""

import asyncio
import json
import re
import signal
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from hwqueue import Member
from hwqueue.client import AsyncClient, Client
from hwqueue.planner import Planner, Round, Settings
from hwqueue.planner.singles import Singles
from hwqueue.testing import Clock
from hwqueue.types import Gang, Gpu, LeaseSpec, NodeSpec, QueuePolicy, SpawnOptions
from tests.e2e.programs import bounded, ran, read_until, running
from tests.e2e.worker_support import wait_until
from tests.parking import is_parked, parking

BOUND_SECONDS = 60.0
ANOTHER = "another"
CUT_WHO_WAITS = (
    "select pg_terminate_backend(pid) from pg_stat_activity"
    " where datname = current_database() and wait_event_type = 'Lock' limit 1"
)

Placed = tuple[UUID, int]


def spec(**resources: int) -> LeaseSpec:
    return LeaseSpec(task="train", options={"placement": {"resources": resources}})


@pytest.fixture
def filled(dsn: str) -> tuple[str, Placed]:
    """A database in which mostly 810s wait, behind which 470s and 530s come; and a node."""
    with Client(dsn) as client:
        client.create_queue("training")
        node = uuid4()
        gpus = [Gpu(resource_id=uuid4()) for _ in range(4)]
        epoch = client.register_node(node, NodeSpec(name="one", instance_id="1", gpus=gpus))
        for share, count in ((810, 20), (530, 3), (470, 3)):
            client.spawn_leases("training", [spec(gpu_milli=share) for _ in range(count)])
        while client.reap().more:
            pass
    return dsn, (node, epoch)


class Process:
    """A planner in a process of its own, and what it has said."""

    def __init__(self, popen: subprocess.Popen[str]) -> None:
        self.popen = popen
        self.said: list[str] = []

    def wait_for(self, pattern: str, after: int = 0) -> re.Match[str]:
        """What it says, or has said after so many lines."""
        with bounded(self.popen):
            while True:
                for line in self.said[after:]:
                    if found := re.search(pattern, line):
                        return found
                self.said += read_until(self.popen, "")

    def end(self, number: signal.Signals) -> int:
        """Its exit code after the signal."""
        self.popen.send_signal(number)
        return self.popen.wait(BOUND_SECONDS)


@pytest.fixture
def planner() -> Iterator[Callable[..., Process]]:
    """Starts planners; all are gone at the end."""
    with ExitStack() as stack:
        yield lambda dsn, *more: Process(stack.enter_context(running(dsn, "planner", *more)))


def test_one_leads_and_the_other_follows(filled: tuple[str, Placed], planner: Callable[..., Process]) -> None:
    """SIGTERM and SIGINT end one after the round under way; the lead goes on at once."""
    dsn, (node, epoch) = filled
    one = planner(dsn, "--interval", "100ms", "--ttl", "5m")
    round_one = one.wait_for(r"epoch 1, round (\d+): 26 leases .* prices: training set")
    assert int(round_one[1]) >= 1
    assert one.wait_for(r"of 4 GPUs 0.00 % are allocated, at most 9\d")
    two = planner(dsn, "--interval", "100ms", "--queue", "training")
    two.wait_for("another process leads")
    with Client(dsn) as client:
        # without prices it would be an 810, which is older and leaves less of the device
        [claim] = client.claim_task(["training"], node, epoch)
        assert claim.assignment is not None
        assert claim.assignment.gpu_milli in (470, 530), (claim.score, one.said)
        status = client.planner_status()
        assert status is not None
        assert status.bound is not None
        assert (status.epoch, status.gpus, [each["queue"] for each in status.prices]) == (
            *(1, 4),
            ["training"],
        )
        assert 3.5 < status.bound <= 4
    assert one.end(signal.SIGTERM) == 0
    two.wait_for("leads, epoch 2")
    two.wait_for("epoch 2, round 1: 25 leases .* training set")
    assert two.end(signal.SIGINT) == 0
    with Client(dsn) as client:
        assert client.lead_planner(ANOTHER) == 3


def test_a_database_that_comes_back(
    filled: tuple[str, Placed], conn: psycopg.Connection[Any], planner: Callable[..., Process]
) -> None:
    """A connection that is cut in the middle of a call is told of; the rounds go on."""
    dsn, _node = filled
    process = planner(dsn, "--interval", "100ms")
    process.wait_for("training set")
    with psycopg.connect(dsn) as holder:
        holder.execute("lock table hwqueue.queue")
        wait_until(lambda: conn.execute(CUT_WHO_WAITS).fetchone() == (True,))
        process.wait_for("the database did not answer")
    process.wait_for(r"round \d+: 26 leases", after=len(process.said))
    assert process.end(signal.SIGTERM) == 0


def test_once(filled: tuple[str, Placed]) -> None:
    """What a round found, and the lead is free again."""
    dsn, _node = filled
    run = ran(dsn, "planner", "--once", "--json")
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert (found["epoch"], found["leases"], found["gpus"]) == (1, 26, 4)
    assert found["prices"] == {"training": "set"}
    assert 3.5 < found["bound"] == found["gap"] <= 4
    with Client(dsn) as client:
        assert client.lead_planner(ANOTHER, ttl=timedelta(minutes=1)) == 2
    run = ran(dsn, "planner", "--once")
    assert (run.returncode, run.stdout) == (0, "")
    assert "another process leads" in run.stderr


def test_who_leads(filled: tuple[str, Placed]) -> None:
    dsn, _node = filled
    run = ran(dsn, "planner", "--status")
    assert (run.returncode, run.stdout) == (0, "")
    assert "no planner leads" in run.stderr
    with Client(dsn) as client:
        client.lead_planner(ANOTHER, ttl=timedelta(minutes=1))
        client.set_prices("training", [0.5] * 101, ttl=timedelta(minutes=1), round=1, epoch=1)
    run = ran(dsn, "planner", "--status")
    assert run.returncode == 0, run.stderr
    assert re.search(rf"holder +{ANOTHER}\n", run.stdout)
    assert "training until" in run.stdout
    run = ran(dsn, "planner", "--status", "--json")
    assert json.loads(run.stdout)["prices"][0]["device_worth"] == [0.5] * 101


def test_what_is_refused() -> None:
    nowhere = "host=127.0.0.1 port=1"
    for options in (["--interval", "1ms"], ["--ttl", "2h"], ["--ttl", "0s"], ["--interval", "soon"]):
        run = ran(nowhere, "planner", *options)
        assert run.returncode == 2
        assert options[0] in run.stderr


def gpu_node(client: Client, name: str, rack: int) -> Placed:
    """A node with a GPU; it and its epoch."""
    node, gpus = uuid4(), [Gpu(resource_id=uuid4())]
    spec = NodeSpec(name=name, instance_id=name, gpus=gpus, rack=rack)
    return node, client.register_node(node, spec)


def gpu_gang(client: Client, count: int) -> UUID:
    """A gang whose members want a GPU each, in one rack."""
    options = SpawnOptions(placement={"resources": {"gpu": 1}})
    member = Member(task="train", count=count, options=options)
    return client.spawn_gang("training", [member], together="rack")[0].gang_id


def booked(gang: Gang) -> list[bool]:
    """Which of the members have room."""
    return [member.reserved_until is not None for member in gang.members]


def test_gangs_are_reserved_where_most_find_room(dsn: str, planner: Callable[..., Process]) -> None:
    """No `reap` runs. Best fit would put a gang of two into each rack, and none of the ones."""
    with Client(dsn) as client:
        client.create_queue("training")
        for rack, count in ((1, 4), (2, 3)):
            for number in range(count):
                gpu_node(client, f"{rack}-{number}", rack)
        gangs = [gpu_gang(client, count) for count in (2, 2, 3)]
        process = planner(dsn, "--interval", "100ms")
        process.wait_for("gangs: 3 reserved; leases: none; prices: none")
        places = [client.get_gang(gang).place for gang in gangs]
        assert places == ["rack 1", "rack 1", "rack 2"]
        assert client.verify_invariants() == []
    assert process.end(signal.SIGTERM) == 0


def test_a_leader_that_is_killed_while_it_reserves_a_gang(
    dsn: str, clock: Clock, planner: Callable[..., Process]
) -> None:
    """What it had begun is whole; upkeep reserves gangs until another one leads, after the TTL."""
    clock.freeze()
    pair = [planner(dsn, "--interval", "100ms", "--ttl", "5m") for _ in range(2)]
    for process in pair:
        process.wait_for("")
    leader, heir = sorted(pair, key=lambda process: "another process leads" in process.said[0])
    assert leader.wait_for("leads, epoch 1")
    with Client(dsn) as client:
        client.create_queue("training")
        nodes = [gpu_node(client, f"n{number}", 1) for number in range(6)]
        with parking(dsn) as holder:
            first = gpu_gang(client, 2)
            wait_until(lambda: is_parked(holder))
            assert leader.end(signal.SIGKILL) == -signal.SIGKILL
            assert booked(client.get_gang(first)) == [False, False]
            assert client.verify_invariants() == []
        wait_until(lambda: all(booked(client.get_gang(first))))  # its call, which the server ends
        second = gpu_gang(client, 2)
        assert client.lead_planner(ANOTHER) is None
        client.reap()
        assert booked(client.get_gang(second)) == [True, True]
        assert client.verify_invariants() == []
        clock.advance(timedelta(minutes=5))
        heir.wait_for("leads, epoch 2")
        for node, epoch in nodes:
            client.heartbeat_node(node, epoch)
        third = gpu_gang(client, 2)
        heir.wait_for("epoch 2, .* gangs: 1 reserved")
        assert heir.end(signal.SIGTERM) == 0
        client.reap()
        gangs = [client.get_gang(gang) for gang in (first, second, third)]
        until = [member.reserved_until for gang in gangs for member in gang.members]
        assert all(each is None or each > clock.now() for each in until), until
        assert [booked(gang) for gang in gangs] == [[False, False], [False, False], [True, True]]
        assert client.verify_invariants() == []


class World:
    """Two nodes with room for a lease each, of which each lease likes the first better.

    A lease that likes both was spawned first. The other one gains from the first node alone, if not
    as much.
    """

    def __init__(self, client: Client, name: str) -> None:
        self._client, self._queue = client, name
        client.create_queue(name, policy=QueuePolicy(patience=timedelta(0)))
        self.nodes = []
        for kind in ("gpu", "disk"):
            labels = {"kind": kind}
            node = NodeSpec(name=f"{name}-{kind}", instance_id="1", labels=labels, slots=1, queues=[name])
            node_id = uuid4()
            self.nodes.append((node_id, client.register_node(node_id, node)))
        self.affinity: dict[UUID, list[float]] = {}
        self.spawn()
        for node_id, epoch in self.nodes:  # judges what it may run
            client.claim_task([name], node_id, epoch, tasks=["nothing"])

    def spawn(self) -> list[UUID]:
        spawned = []
        for strength, weights in ((100, {"gpu": 100, "disk": 90}), (50, {"gpu": 100})):
            placement = {"strength": strength, "prefer": [_prefers(*one) for one in weights.items()]}
            lease = self._client.spawn_lease(self._queue, "train", placement=placement).lease_id
            total = sum(weights.values())
            self.affinity[lease] = [strength * weights.get(kind, 0) / total for kind in ("gpu", "disk")]
            spawned.append(lease)
        return spawned

    def value(self) -> float:
        """What the leases gain where the nodes take them."""
        total = 0.0
        for turn, (node_id, epoch) in enumerate(self.nodes):
            [claim] = self._client.claim_task([self._queue], node_id, epoch)
            total += self.affinity[claim.lease_id][turn]
        return total


def _prefers(kind: str, weight: int) -> dict[str, Any]:
    return {"weight": weight, "when": {"label": "kind", "op": "in", "values": [kind]}}


def test_leases_of_a_short_queue_gain_more_together(dsn: str) -> None:
    """The node takes what scores highest on it; the plan leaves it to the one that loses more."""

    async def planned(queue: str, **settings: Any) -> Round:
        async with AsyncClient(dsn, pool_size=1) as client:
            planner = Planner(client, Settings(queues=[queue], **settings))
            try:
                done = await planner.run_once()
                assert done is not None
                return done
            finally:
                await planner.resign()

    with Client(dsn) as client:
        alone, off, together = (World(client, name) for name in ("alone", "off", "together"))
        assert asyncio.run(planned("off", lease_hold=timedelta(0))).singles == {}
        done = asyncio.run(planned("together"))
        assert done.singles == {"proposed": 2, "reserved": 2}
        assert client.verify_invariants() == []
        status = client.planner_status()
        assert status is not None
        assert (status.leases, status.resting) == ({"proposed": 2, "reserved": 2}, 0)
        assert status.seconds is not None
        assert status.seconds.keys() == done.seconds.keys()
        # nothing is contested any more
        assert asyncio.run(planned("together")).singles == {}
        assert alone.value() == off.value() == pytest.approx(100 * 100 / 190)
        assert together.value() == pytest.approx(100 * 90 / 190 + 50)


HOLD = timedelta(seconds=3)


class Rounds:
    """Rounds of single leases alone, in a world; `now` is the planner's own clock."""

    def __init__(self, client: AsyncClient, epoch: int, world: World) -> None:
        self.now, self.world = 0.0, world
        self._epoch, self._number = epoch, 0
        settings = Settings(queues=["rounds"], lease_hold=HOLD)
        self.singles = Singles(client, settings, lambda: False, lambda: self.now)

    async def another(self) -> dict[str, int]:
        self._number += 1
        return dict(await self.singles.assign(self._number, self._epoch))


@pytest.fixture
async def rounds(dsn: str, producer: Client, clock: Clock) -> AsyncIterator[Rounds]:
    """Of a planner that leads, while the database's clock stands still."""
    clock.freeze()
    epoch = producer.lead_planner("me", ttl=timedelta(hours=1))
    assert epoch is not None
    async with AsyncClient(dsn, pool_size=1) as planning:
        yield Rounds(planning, epoch, World(producer, "rounds"))


def expire(client: Client, clock: Clock, world: World) -> None:
    """Let reservations run out, and upkeep end them; the nodes live on."""
    clock.advance(timedelta(minutes=1))
    client.reap()
    for node_id, epoch in world.nodes:
        client.heartbeat_node(node_id, epoch)


async def test_what_is_not_fetched_is_reserved_once(producer: Client, clock: Clock, rounds: Rounds) -> None:
    """And its nodes get nothing else for 19 times as long as they held it."""
    world = rounds.world
    assert await rounds.another() == {"proposed": 2, "reserved": 2}
    rounds.now = 1.0
    assert await rounds.another() == {}  # they are in no queue now
    expire(producer, clock, world)
    rounds.now = 3.0
    assert await rounds.another() == {"expired": 2}
    for lease in world.affinity:
        producer.cancel_lease(lease)
    world.spawn()
    rounds.now = 3.0 + 19 * 3.0 - 1
    assert (await rounds.another(), rounds.singles.resting) == ({}, 2)
    rounds.now += 1
    assert await rounds.another() == {"proposed": 2, "reserved": 2}
    assert rounds.singles.resting == 0
    world.value()
    assert await rounds.another() == {"fetched": 2}


async def test_a_lease_that_came_back_is_left_to_claims(
    producer: Client, clock: Clock, rounds: Rounds
) -> None:
    """However long it waits, and though no node had room for it meanwhile."""
    world = rounds.world
    assert (await rounds.another())["reserved"] == 2
    expire(producer, clock, world)
    assert await rounds.another() == {"expired": 2}
    for node_id, _epoch in world.nodes:  # the plan sees neither leases nor nodes
        producer.cordon_node(node_id)
    assert await rounds.another() == {}
    for node_id, _epoch in world.nodes:
        producer.uncordon_node(node_id)
    rounds.now = 1000.0
    assert (await rounds.another(), rounds.singles.resting) == ({}, 0)
    assert world.value() == pytest.approx(100 * 100 / 190)


async def test_a_round_reserves_a_bounded_number(rounds: Rounds, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hwqueue.planner.singles._MOST", 1)
    assert await rounds.another() == {"proposed": 2, "too_many": 1, "reserved": 1}
