"""Waiting until leases end, through both clients."""

import asyncio
import pickle
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from hwqueue import App, errors
from hwqueue.client import AsyncClient, Client, _pauses
from hwqueue.types import Claim, NodeSpec, SpawnResult
from tests.client.conftest import Node

Claims = Callable[[], Awaitable[Claim]]
BOUND = timedelta(seconds=30)
_LISTENING = "query = 'listen hwqueue_ended' and datname = current_database()"
LISTENERS = f"select count(*) from pg_stat_activity where {_LISTENING}"
FLAGGED = "select count(*) from hwqueue.claim where is_awaited"


@pytest.fixture
def claim(client: AsyncClient, queue: str, node: Node) -> Claims:

    async def make() -> Claim:
        await client.spawn_lease(queue, "t", max_attempts=1)
        [claimed] = await client.claim_task([queue], node.node_id, node.epoch)
        return claimed

    return make


async def until(dsn: str, query: str, wanted: int = 1) -> None:
    """Ask the database until it counts so many."""
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        async with asyncio.timeout(BOUND.total_seconds()):
            while True:
                cursor = await connection.execute(query)
                if await cursor.fetchone() == (wanted,):
                    return


async def test_a_lease_that_has_ended_is_returned_at_once(client: AsyncClient, claim: Claims) -> None:
    claimed = await claim()
    await client.complete_lease(claimed.lease_id, claimed.claim_token, result={"drawn": 7})
    lease = await client.wait(str(claimed.lease_id), timeout=timedelta(0))
    assert (lease.lease_id, lease.state) == (claimed.lease_id, "completed")
    assert await client.result(claimed.lease_id, timeout=timedelta(0)) == {"drawn": 7}


async def test_an_end_wakes_who_waits(
    client: AsyncClient, claim: Claims, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The notification alone does: between two looks there is an hour."""
    monkeypatch.setattr(_pauses, "LISTEN_AFTER_SECONDS", 0.0)
    monkeypatch.setattr(_pauses, "_FIRST_SECONDS", 3600.0)
    monkeypatch.setattr(_pauses, "_MOST_NOTIFIED_SECONDS", 3600.0)
    monkeypatch.setattr(_pauses, "_MOST_SECONDS", 3600.0)
    mine, other = await claim(), await claim()
    waiting = asyncio.create_task(client.wait(mine.lease_id, timeout=BOUND * 1000))
    await until(dsn, FLAGGED)
    await client.complete_lease(other.lease_id, other.claim_token)
    await client.complete_lease(mine.lease_id, mine.claim_token)
    async with asyncio.timeout(BOUND.total_seconds()):
        assert (await waiting).state == "completed"
    await until(dsn, LISTENERS, 0)


@pytest.mark.thorough
async def test_a_lost_connection_leaves_polling(
    client: AsyncClient, claim: Claims, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_pauses, "LISTEN_AFTER_SECONDS", 0.0)
    claimed = await claim()
    waiting = asyncio.create_task(client.wait(claimed.lease_id, timeout=BOUND))
    await until(dsn, LISTENERS)
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as connection:
        await connection.execute(f"select pg_terminate_backend(pid) from pg_stat_activity where {_LISTENING}")
    await until(dsn, LISTENERS, 0)
    await client.complete_lease(claimed.lease_id, claimed.claim_token)
    assert (await waiting).state == "completed"


@pytest.mark.thorough
async def test_many_come_in_the_order_given(client: AsyncClient, claim: Claims) -> None:
    claims = [await claim() for _ in range(3)]
    for claimed in reversed(claims):
        await client.complete_lease(claimed.lease_id, claimed.claim_token)
    ids = [claimed.lease_id for claimed in claims]
    leases = await client.wait_many([*ids, ids[0]], timeout=BOUND)
    assert [lease.lease_id for lease in leases] == ids


@pytest.mark.thorough
async def test_more_than_one_call_may_ask_for(client: AsyncClient, queue: str) -> None:
    spawned = await client.spawn_leases(queue, [{"task": "t"}] * 1001)
    ids = [one.lease_id for one in spawned]
    await client.cancel_lease(ids[-1])
    with pytest.raises(errors.WaitTimeout) as caught:
        await client.wait_many(ids, timeout=timedelta(0))
    assert len(caught.value.detail["lease_ids"]) == 1000


@pytest.mark.thorough
async def test_as_completed_yields_the_first_to_end_first(
    client: AsyncClient, claim: Claims, kind: str, dsn: str
) -> None:
    first, second = await claim(), await claim()
    ids = [first.lease_id, second.lease_id]
    await client.complete_lease(second.lease_id, second.claim_token)
    if kind == "async":
        ends = client.as_completed(ids, timeout=BOUND)
        one = await anext(ends)
        await client.complete_lease(first.lease_id, first.claim_token)
        rest = [lease async for lease in ends]
    else:
        with Client(dsn) as sync_client:
            sync_ends = sync_client.as_completed(ids, timeout=BOUND)
            one = next(sync_ends)
            await client.complete_lease(first.lease_id, first.claim_token)
            rest = await asyncio.to_thread(list, sync_ends)
    assert [lease.lease_id for lease in (one, *rest)] == ids[::-1]


async def test_a_failure_is_raised_with_its_error(client: AsyncClient, claim: Claims) -> None:
    claimed = await claim()
    error = {"type": "RuntimeError", "message": "smtp down"}
    await client.fail_lease(claimed.lease_id, claimed.claim_token, error=error)
    with pytest.raises(errors.LeaseFailed, match="attempt 1 of 1: RuntimeError: smtp down") as caught:
        await client.result(claimed.lease_id, timeout=BOUND)
    assert caught.value.detail["error"] == error
    assert (await client.wait(claimed.lease_id, timeout=BOUND)).error == error


async def test_time_runs_out(client: AsyncClient, queue: str) -> None:
    spawned = await client.spawn_lease(queue, "t")
    with pytest.raises(errors.WaitTimeout, match="has not ended within") as caught:
        await client.wait(spawned.lease_id, timeout=timedelta(0))
    assert caught.value.detail == {"lease_ids": [str(spawned.lease_id)]}
    assert caught.value.retryable
    assert f"(as an operator): hwqueue lease explain {spawned.lease_id}" in str(caught.value.hint)


async def test_what_there_is_not_is_not_waited_for(client: AsyncClient) -> None:
    with pytest.raises(errors.LeaseNotFound):
        await client.wait(uuid4(), timeout=BOUND)
    assert await client.wait_many([], timeout=BOUND) == []
    with pytest.raises(errors.BadArgument, match="timeout must be at least 0"):
        await client.wait(uuid4(), timeout=timedelta(seconds=-1))
    with pytest.raises(errors.BadArgument, match="not the id of a lease"):
        await client.wait("seven", timeout=BOUND)


async def test_what_was_spawned_can_be_waited_for(dsn: str) -> None:
    async with AsyncClient(dsn) as client:
        await client.create_queue("work")
        [spawned] = await client.spawn_leases("work", [{"task": "t"}])
        await client.cancel_lease(spawned.lease_id)
        assert (await spawned.wait(timeout=BOUND)).state == "cancelled"
        with pytest.raises(errors.LeaseCancelled, match="was cancelled"):
            await spawned.result(timeout=BOUND)
        again = pickle.loads(pickle.dumps(spawned))
        assert type(again) is SpawnResult
        assert again.lease_id == spawned.lease_id
    with Client(dsn) as sync_client:
        other = sync_client.spawn_lease("work", "t")
        sync_client.cancel_lease(other.lease_id)
        with pytest.raises(errors.LeaseCancelled, match="was cancelled"):
            other.result(timeout=BOUND)


@App().task("at", queue="work")
def at(frame: int) -> datetime:
    return datetime(2030, 1, frame, tzinfo=UTC)


async def test_what_a_task_spawned_has_the_result_that_its_handler_returns(dsn: str) -> None:
    async with AsyncClient(dsn) as client:
        await client.create_queue("work")
        with Client(dsn) as other:
            spawned: list[Any] = [
                (await at.spawn(client, frame=1)).result,
                (await at.spawn_many(client, [{"frame": 2}]))[0].result,
                partial(asyncio.to_thread, at.spawn(other, frame=3).result),
                partial(asyncio.to_thread, at.spawn_many(other, [{"frame": 4}])[0].result),
            ]
            node = uuid4()
            epoch = await client.register_node(node, NodeSpec(name="n", instance_id="1"))
            for one in await client.claim_task(["work"], node, epoch, qty=4):
                result = at(one.params["frame"]).isoformat() if one.params["frame"] != 4 else 4
                await client.complete_lease(one.lease_id, one.claim_token, result=result)
            for frame, result_of in enumerate(spawned[:3], 1):
                assert await result_of(timeout=BOUND) == at(frame)
            with pytest.raises(errors.BadArgument, match="'at': result must be a time"):
                await spawned[3](timeout=BOUND)


@pytest.mark.thorough
async def test_a_connection_of_yours_cannot_wait(dsn: str) -> None:
    """In your transaction the lease is nobody's to claim."""
    with Client(dsn) as client:
        client.create_queue("work")
    with psycopg.connect(dsn) as connection:
        own = Client.on(connection)
        spawned = own.spawn_lease("work", "t")
        with pytest.raises(errors.ConfigError, match="cannot wait on your connection"):
            spawned.result(timeout=BOUND)
        with pytest.raises(errors.ConfigError, match="your connection"):
            own.wait_for_run(uuid4())


async def test_a_run_is_waited_for_until_its_last_step_has_ended(
    client: AsyncClient, queue: str, node: Node
) -> None:
    steps = [{"name": "a", "task": "t"}, {"name": "b", "task": "t", "after": ["a"]}]
    run = (await client.submit_spec({"name": "film", "queue": queue, "steps": steps})).run_id
    with pytest.raises(errors.WaitTimeout, match="is running") as caught:
        await client.wait_for_run(run, timeout=timedelta(0))
    assert caught.value.detail == {"run_id": str(run), "state": "running"}
    waiting = asyncio.create_task(client.wait_for_run(run, timeout=BOUND))
    for _ in steps:
        [claimed] = await client.claim_task([queue], node.node_id, node.epoch)
        assert not waiting.done()
        await client.complete_lease(claimed.lease_id, claimed.claim_token)
    ended = await waiting
    assert (ended.run_id, ended.state, ended.step_counts) == (run, "completed", {"completed": 2})
    assert await client.wait_for_run(str(run), timeout=timedelta(0)) == ended
    with pytest.raises(errors.RunNotFound):
        await client.wait_for_run(uuid4())
