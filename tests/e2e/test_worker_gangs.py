"""Gangs in real workers: handlers begin together, and again together. Everywhere tasks: once each."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from hwqueue import Member
from hwqueue.client import AsyncClient, Client
from hwqueue.types import LeaseState, NodeSpec, QueuePolicy, SpawnedMember
from hwqueue.worker.session import NodeSession
from tests.direct import Direct
from tests.e2e.worker_support import (
    AT_ONCE,
    BOUND_SECONDS,
    QUEUE,
    ended,
    is_in,
    until,
    wait_until,
    worker,
    worker_process,
)
from tests.parking import is_parked, parking

KINDS = ["meet", "meet-sync", "meet-process", "meet-async-process"]

pytestmark = pytest.mark.usefixtures("way")
OFTEN = timedelta(milliseconds=100)


@pytest.fixture
def policy() -> QueuePolicy:
    return QueuePolicy(retry=AT_ONCE)


def node(number: int, **changes: Any) -> dict[str, Any]:
    """Settings of a made-up node: one slot, and an address for its peers."""
    labels = {"address": f"10.0.0.{number}", "number": number}
    return {"name": f"node-{number}", "labels": labels, "concurrency": 1, **changes}


def arrived(folder: Path) -> set[tuple[int, int]]:
    """Ranks and claim tokens of the handlers that have begun."""
    begun = set()
    for file in folder.glob("here-*"):
        _, rank, claim_token = file.name.split("-")
        begun.add((int(rank), int(claim_token)))
    return begun


async def results(client: AsyncClient, members: list[SpawnedMember]) -> list[Any]:
    return [(await ended(client, member.lease_id)).result for member in members]


async def in_state(client: AsyncClient, gang_id: UUID, state: str) -> str | None:
    """Wait until a gang is in a state; why it is not reserved."""
    async with asyncio.timeout(BOUND_SECONDS):
        while (gang := await client.get_gang(gang_id)).state != state or (
            state == "waiting" and gang.reason is None
        ):
            await asyncio.sleep(0.02)
    return gang.reason


@pytest.mark.parametrize("task", KINDS)
async def test_handlers_see_each_other(client: AsyncClient, dsn: str, tmp_path: Path, task: str) -> None:
    (tmp_path / "go").touch()
    params = {"folder": str(tmp_path)}
    members = await client.spawn_gang(QUEUE, [Member(task, params, count=2)])
    async with worker(dsn, **node(1, reap_interval=OFTEN)), worker(dsn, **node(2)):
        first, second = await results(client, members)
        await in_state(client, members[0].gang_id, "completed")
    assert [first.pop("rank"), second.pop("rank")] == [0, 1]
    assert [first["environment"].pop("RANK"), second["environment"].pop("RANK")] == ["0", "1"]
    assert first == second
    assert set(first["nodes"]) == {"node-1", "node-2"}
    assert first["leases"] == [str(member.lease_id) for member in members]
    address = {"node-1": "10.0.0.1", "node-2": "10.0.0.2"}
    assert first["addresses"] == [address[name] for name in first["nodes"]]
    assert first["environment"] == {
        "MASTER_ADDR": first["addresses"][0],
        "MASTER_PORT": "29500",
        "WORLD_SIZE": "2",
    }


async def pinned_gang(client: AsyncClient, task: str, folder: Path) -> list[SpawnedMember]:
    """Rank 0 for node 1, rank 1 for node 2."""
    return await client.spawn_gang(
        QUEUE,
        [
            Member(task, {"folder": str(folder)}, options={"affinity_tags": {"number": number}})
            for number in (1, 2)
        ],
    )


@pytest.mark.parametrize("task", KINDS)
async def test_nobody_begins_before_all_are_there(
    client: AsyncClient, dsn: str, tmp_path: Path, task: str, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "go").touch()
    looks, ask = [], NodeSession.ask

    async def noted(session: NodeSession, *asked: Any) -> Any:
        looks.append(asked)
        return await ask(session, *asked)

    monkeypatch.setattr(NodeSession, "ask", noted)
    late = uuid4()
    spec = NodeSpec(name="late", instance_id="first", labels={"number": 2, "address": "10.0.0.2"})
    epoch = await client.register_node(late, spec)
    members = await pinned_gang(client, task, tmp_path)
    async with worker(dsn, **node(1, reap_interval=OFTEN)):
        await _claimed(client, members[0].lease_id)
        single = (await client.spawn_lease(QUEUE, "alone")).lease_id
        await until(lambda: len(looks) >= 3)
        assert arrived(tmp_path) == set()
        assert (await client.get_lease(single)).state is LeaseState.PENDING  # the slot is taken
        [claim] = await client.claim_task([QUEUE], late, epoch)
        await until(lambda: bool(arrived(tmp_path)))
        (tmp_path / "here-1-0").touch()
        assert (await ended(client, members[0].lease_id)).result["rank"] == 0
        await client.complete_lease(claim.lease_id, claim.claim_token)
        assert (await ended(client, single)).result is True


async def _claimed(client: AsyncClient, lease_id: UUID) -> None:
    """Wait until a worker has fetched a lease, which its reservation does not say."""
    async with asyncio.timeout(BOUND_SECONDS):
        while (lease := await client.get_lease(lease_id)).claim_token is None or (
            (await client.gang_status(lease_id, lease.claim_token)).members[0].reserved_until
        ):
            await asyncio.sleep(0.02)


async def test_a_worker_that_stops_gives_up_what_waits(client: AsyncClient, dsn: str, tmp_path: Path) -> None:
    """It does not wait for the gang until its deadline."""
    spec = NodeSpec(name="late", instance_id="first", labels={"number": 2})
    await client.register_node(uuid4(), spec)
    members = await pinned_gang(client, "meet-sync", tmp_path)
    async with worker(dsn, **node(1, reap_interval=OFTEN, shutdown_timeout=timedelta(hours=1))) as stopped:
        await _claimed(client, members[0].lease_id)
        stopped.stop()
        async with asyncio.timeout(BOUND_SECONDS):
            while not (lease := await client.get_lease(members[0].lease_id)).attempts:
                await asyncio.sleep(0.02)
    assert [attempt.outcome for attempt in lease.attempts] == ["released"]
    assert arrived(tmp_path) == set()


async def test_a_gang_without_room_waits_while_single_leases_go_on(
    client: AsyncClient, dsn: str, tmp_path: Path
) -> None:
    (tmp_path / "go").touch()
    params = {"folder": str(tmp_path)}
    members = await client.spawn_gang(QUEUE, [Member("meet", params, count=3)])
    gang_id = members[0].gang_id
    async with worker(dsn, **node(1, reap_interval=OFTEN)), worker(dsn, **node(2)):
        assert await in_state(client, gang_id, "waiting") == "insufficient_capacity"
        for _ in range(3):
            single = await client.spawn_lease(QUEUE, "alone")
            assert (await ended(client, single.lease_id)).result is True
        assert (await client.get_gang(gang_id)).state == "waiting"
        assert arrived(tmp_path) == set()
        async with worker(dsn, **node(3)):
            found = await results(client, members)
    assert [one["rank"] for one in found] == [0, 1, 2]


def test_both_run_again_after_a_node_was_killed(dsn: str, tmp_path: Path) -> None:
    params = {"folder": str(tmp_path)}
    quick = {"reap_interval": 0.1, "claim_timeout": 6.0, "heartbeat_timeout": 6.0}
    with Client(dsn) as client, ExitStack() as running:
        client.create_queue(QUEUE, policy=QueuePolicy(retry=AT_ONCE))
        processes = {
            f"node-{number}": running.enter_context(worker_process(dsn, **node(number, **quick)))
            for number in (1, 2)
        }
        members = client.spawn_gang(QUEUE, [Member("meet-sync", params, count=2)])
        wait_until(lambda: len(arrived(tmp_path)) == 2)
        before = arrived(tmp_path)
        killed = client.get_gang(members[0].gang_id).members[1].node
        assert killed is not None
        processes[killed].send_signal(signal.SIGKILL)
        running.enter_context(worker_process(dsn, **node(3, **quick)))
        wait_until(lambda: len(arrived(tmp_path) - before) == 2)
        again = arrived(tmp_path) - before
        assert {rank for rank, _ in again} == {0, 1}
        (tmp_path / "go").touch()
        leases = [member.lease_id for member in members]
        wait_until(lambda: {client.get_lease(one).state for one in leases} == {"completed"})
        first, second = map(client.get_lease, leases)
        assert first.attempts[0].outcome == "released"
        assert second.attempts[0].outcome == "expired"
        assert first.result["nodes"] == second.result["nodes"]
        assert killed not in first.result["nodes"]
        assert client.get_gang(members[0].gang_id).losses


def test_a_worker_that_is_killed_while_it_assembles_its_gang(dsn: str, tmp_path: Path) -> None:
    """Half of the gang has room by then, one of them on its own node: the other never begins."""
    params = {"folder": str(tmp_path)}
    quick = {"claim_timeout": 6.0, "heartbeat_timeout": 6.0}
    with Client(dsn) as client, ExitStack() as running:

        def start(number: int, **more: float) -> subprocess.Popen[str]:
            settings = node(number, **quick, **more)
            return running.enter_context(worker_process(dsn, **settings))

        client.create_queue(QUEUE, policy=QueuePolicy(retry=AT_ONCE))
        single = client.spawn_lease(QUEUE, "alone", affinity_tags={"number": 1}).lease_id
        with parking(dsn) as watched:
            start(2)
            # it polls once: a claim that was under way when it was killed would go to a dead node
            assembles = start(1, reap_interval=0.1, poll_interval=600.0)
            wait_until(is_in(client, single, LeaseState.COMPLETED))
            members = client.spawn_gang(
                QUEUE, [Member("meet-sync", params, count=2)], hold=timedelta(seconds=1)
            )
            wait_until(lambda: is_parked(watched))
            assembles.send_signal(signal.SIGKILL)
            assembles.wait()
        start(3, reap_interval=0.1)
        wait_until(lambda: len(arrived(tmp_path)) >= 2)
        assert {rank for rank, _ in arrived(tmp_path)} == {0, 1}
        gang = client.get_gang(members[0].gang_id)
        assert {member.node for member in gang.members} == {"node-2", "node-3"}
        (tmp_path / "go").touch()
        wait_until(lambda: client.get_gang(members[0].gang_id).state == "completed")
    assert len(arrived(tmp_path)) == 2  # no other handler has begun
    with psycopg.connect(dsn, autocommit=True) as conn:
        assert Direct(conn).rows("verify_invariants") == []


async def test_workers_run_it_once_each(client: AsyncClient, dsn: str) -> None:
    often = timedelta(milliseconds=100)
    async with worker(dsn, name="node-1", reap_interval=often):
        spawned = await client.spawn_everywhere(QUEUE, "alone", mode="once")
        async with worker(dsn, name="node-2"), asyncio.timeout(BOUND_SECONDS):
            while (found := await client.get_everywhere(spawned.everywhere_id)).completed < 2:
                await asyncio.sleep(0.02)
    assert {lease.node for lease in found.leases} == {"node-1", "node-2"}
    results = [(await client.get_lease(lease.lease_id)).result for lease in found.leases]
    assert results == [True, True]  # of no gang
