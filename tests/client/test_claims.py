"""Take work, keep it, settle it; reap and prune."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest

from hwqueue import errors
from hwqueue.client import AsyncClient
from hwqueue.types import AssignedGpu, Claim, Gpu, LeaseSpec, LeaseState, NodeSpec, Settlement
from tests.client.conftest import Node


async def claim_one(client: AsyncClient, queue: str, node: Node) -> Claim:
    await client.spawn_lease(queue, "t", {"a": 1}, headers={"h": 1})
    (claim,) = await client.claim_task([queue], node.node_id, node.epoch)
    return claim


async def test_a_claim_has_all_that_a_worker_needs(client: AsyncClient, queue: str, node: Node) -> None:
    claim = await claim_one(client, queue, node)
    assert (claim.queue, claim.task_name, claim.params) == (queue, "t", {"a": 1})
    assert (claim.attempt, claim.headers, claim.assignment) == (1, {"h": 1}, None)
    assert claim.claim_token > 0
    assert claim.expires_at > datetime.now(UTC)
    assert await client.claim_task([queue], node.node_id, node.epoch) == []


async def test_assignments_say_what_was_set_aside(client: AsyncClient, queue: str) -> None:
    """For leases that ask nothing, too, on a node whose default says so."""
    node_id, gpu_id = uuid4(), uuid4()
    whole = Gpu(resource_id=gpu_id, model="A100", partitionable=True)
    spec = NodeSpec(
        name="isolating",
        instance_id="i",
        memory_mib=4096,
        custom={"licence": 3},
        cores=[{"core": core, "threads": [core, core + 8]} for core in range(2)],
        gpus=[whole, Gpu(resource_id=uuid4(), parent_resource_id=gpu_id)],
        cpu_isolation=["whole_core"],
        gpu_exclusivity=["partition_exclusive"],
        default_cpu_isolation="whole_core",
        gpu_share_mode="exclusive",
    )
    epoch = await client.register_node(node_id, spec)
    wanted = {"cpu_milli": 1500, "memory_mib": 64, "gpu": 1, "licence": 1}
    await client.spawn_lease(queue, "t", placement={"resources": wanted})
    (claim,) = await client.claim_task([queue], node_id, epoch)
    assert claim.assignment is not None
    assert claim.assignment.cpu_isolation == "whole_core"
    assert (claim.assignment.memory_mib, claim.assignment.custom) == (64, {"licence": 1})
    assert claim.assignment.gpu_milli == 1000
    assert claim.assignment.gpus == (AssignedGpu(index=0, resource_id=gpu_id, model="A100"),)
    assert claim.assignment.gpu_exclusivity == "device_exclusive"
    assert (claim.assignment.cores, claim.assignment.core_milli) == ((0, 1), (1000, 1000))
    assert (claim.assignment.numa, claim.assignment.cpus) == ((0,), (0, 1, 8, 9))
    assert (await client.get_lease(claim.lease_id)).assignment == claim.assignment


async def test_many_are_completed_by_one_call(client: AsyncClient, queue: str, node: Node) -> None:
    claims = [await claim_one(client, queue, node) for _ in range(3)]
    pairs = [(claim.lease_id, claim.claim_token) for claim in claims]
    assert await client.complete_leases(pairs[:2]) == []
    left = await client.complete_leases(pairs)
    assert [(row.ordinal, row.verdict, row.state) for row in left] == [
        (1, "finished", "completed"),
        (2, "finished", "completed"),
    ]
    assert await client.complete_leases([]) == []
    backwards = await client.complete_leases(reversed(pairs))
    assert [row.lease_id for row in backwards] == [lease_id for lease_id, _ in reversed(pairs)]


async def test_claims_that_are_none(client: AsyncClient) -> None:
    wrong: list[tuple[Any, str]] = [
        ([(uuid4(), 1), ("x", 1)], "claims[1].lease_id"),
        ([(uuid4(), "1")], "claims[0].claim_token"),
        ([(uuid4(), 1 << 63)], "claims[0].claim_token"),
        ([uuid4()], "claims[0]"),
    ]
    for claims, field in wrong:
        with pytest.raises(errors.BadArgument) as caught:
            await client.complete_leases(claims)
        assert caught.value.detail["field"] == field


async def test_failing_and_releasing(client: AsyncClient, queue: str, node: Node) -> None:
    claim = await claim_one(client, queue, node)
    state = await client.release_lease(claim.lease_id, claim.claim_token)
    assert state == LeaseState.PENDING
    (claim,) = await client.claim_task([queue], node.node_id, node.epoch)
    assert claim.attempt == 1
    with pytest.raises(errors.BadArgument, match="error must be JSON") as caught:
        await client.fail_lease(claim.lease_id, claim.claim_token, error=None)  # type: ignore[arg-type]
    assert caught.value.field == "error"
    state = await client.fail_lease(
        claim.lease_id,
        claim.claim_token,
        error={"message": "x"},
        retry_at=datetime.now(UTC) + timedelta(hours=1),
    )
    assert state == LeaseState.SCHEDULED


async def test_settle_and_claim(client: AsyncClient, queue: str, node: Node) -> None:
    await client.spawn_leases(queue, [LeaseSpec(task="t", params={"n": n}) for n in range(5)])
    first = await client.claim_task([queue], node.node_id, node.epoch, qty=4)
    assert len(first) == 4
    settlements: list[Settlement | dict[str, Any]] = [
        Settlement.complete(first[0].lease_id, first[0].claim_token, result={"ok": True}),
        Settlement.fail(first[1].lease_id, first[1].claim_token, error={"m": 1}, retry=False),
        Settlement.fail(first[0].lease_id, first[0].claim_token, error={}, retry=False),  # too late
        Settlement.release(first[2].lease_id, first[2].claim_token, delay=timedelta(hours=1)),
        {"lease_id": first[3].lease_id, "claim_token": first[3].claim_token + 1, "outcome": "complete"},
    ]
    answer = await client.settle_and_claim(node.node_id, node.epoch, settlements, [queue], qty=5)
    assert [(s.ordinal, s.verdict, s.state) for s in answer.settled] == [
        (1, "ok", "completed"),
        (2, "ok", "failed"),
        (3, "finished", "completed"),
        (4, "ok", "scheduled"),
        (5, "bad_token", "claimed"),
    ]
    assert [claim.params for claim in answer.claimed] == [{"n": 4}]
    only = await client.settle_and_claim(node.node_id, node.epoch, [], [queue], qty=0)
    assert (only.settled, only.claimed) == ((), ())


async def test_a_bad_settlement_is_named(client: AsyncClient, queue: str, node: Node) -> None:
    claim = await claim_one(client, queue, node)
    bad = Settlement.complete(claim.lease_id, claim.claim_token, result={"a": float("inf")})
    done = Settlement.complete(claim.lease_id, claim.claim_token)
    won: dict[str, Any] = {"lease_id": claim.lease_id, "outcome": "won"}
    batches: list[tuple[list[Settlement | dict[str, Any]], str]] = [
        ([bad], "settle[0].result.a"),
        ([won], "settle[0].outcome"),
        ([done, Settlement(**won, claim_token=claim.claim_token)], "settle[1].outcome"),
        ([replace(done, traceparent="x" * 201)], "settle[0].traceparent"),
    ]
    for batch, field in batches:
        with pytest.raises(errors.BadArgument) as caught:
            await client.settle_and_claim(node.node_id, node.epoch, batch, [queue])
        assert caught.value.field == field


async def test_upkeep(client: AsyncClient, queue: str) -> None:
    await client.spawn_lease(queue, "t")
    reaped = await client.reap()
    assert (reaped.expired, reaped.promoted, reaped.deadlines) == (0, 0, 0)
    pruned = await client.prune(limit=10)
    assert (pruned.leases, pruned.more) == (0, False)
    assert not (await client.prune(unless_within=timedelta(hours=1))).more
    with pytest.raises(errors.BadArgument) as caught:
        await client.reap(limit=0)
    assert caught.value.field == "limit"
    assert len((await client.schema_version()).bundle_sha256) == 64
    await client.check_schema()
