"""Queues, nodes and upkeep."""

import dataclasses
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from hwqueue import errors
from hwqueue.client import AsyncClient
from hwqueue.placement import Placement, tags
from hwqueue.types import Gpu, NodeSpec, QueuePolicy, ServicePolicy, Taint
from tests.client.conftest import Node


async def test_queues_are_created_once(client: AsyncClient) -> None:
    policy = QueuePolicy(claim_timeout=timedelta(minutes=2), max_attempts=3)
    await client.create_queue("q", policy=policy)
    await client.create_queue("q", policy=policy)
    with pytest.raises(errors.QueueExists):
        await client.create_queue("q", policy={"max_attempts": 5})
    await client.create_queue("q")
    await client.set_queue_policy("q", {"max_attempts": 4})
    (queue,) = await client.list_queues()
    assert (queue.queue, queue.paused, queue.pending) == ("q", False, 0)
    assert (queue.policy["claim_timeout"], queue.policy["max_attempts"]) == (120, 4)


async def test_pause_resume_and_drop(client: AsyncClient, queue: str, node: Node) -> None:
    await client.spawn_lease(queue, "t")
    await client.pause_queue(queue)
    assert (await client.list_queues())[0].paused
    assert await client.claim_task([queue], node.node_id, node.epoch) == []
    await client.resume_queue(queue)
    with pytest.raises(errors.QueueNotEmpty):
        await client.drop_queue(queue)
    await client.drop_queue(queue, force=True)
    with pytest.raises(errors.QueueUnknown):
        await client.pause_queue(queue)


async def test_a_node_is_listed_as_it_was_registered(client: AsyncClient) -> None:
    node_id, gpu_id = uuid4(), uuid4()
    spec = NodeSpec(
        name="n9",
        instance_id="i",
        heartbeat_timeout=timedelta(seconds=20),
        labels={"zone": "a"},
        rack=7,
        cpu_milli=4000,
        custom={"licence": 2},
        gpus=[Gpu(resource_id=gpu_id, model="T4", memory_mib=16384)],
        resources=[uuid4()],
        slots=5,
    )
    epoch = await client.register_node(node_id, spec)
    assert await client.register_node(node_id, spec) == epoch
    (node,) = await client.list_nodes(name="n9")
    assert (node.node_id, node.node_epoch, node.live) == (node_id, epoch, True)
    assert (node.labels, node.rack, node.slots, node.claims) == ({"zone": "a"}, 7, 5, 0)
    assert (node.capacity["cpu_milli"], node.capacity["licence"]) == (4000, 2)
    (gpu,) = node.gpus
    assert (gpu.resource_id, gpu.model, gpu.memory_mib, gpu.milli_used) == (gpu_id, "T4", 16384, 0)
    assert await client.list_nodes(name="other") == []
    with pytest.raises(errors.NodeNameTaken):
        await client.register_node(uuid4(), spec)


async def test_cordon_drain_and_deregister(client: AsyncClient, queue: str, node: Node) -> None:
    await client.spawn_lease(queue, "t")
    await client.cordon_node(node.node_id)
    assert await client.claim_task([queue], node.node_id, node.epoch) == []
    await client.uncordon_node(node.node_id)
    (claim,) = await client.claim_task([queue], node.node_id, node.epoch)
    await client.drain_node(node.node_id, deadline=timedelta(minutes=1))
    (seen,) = await client.list_nodes()
    assert (seen.cordoned, seen.draining, seen.claims) == (True, True, 1)
    (beat,) = await client.heartbeat_node(
        node.node_id, node.epoch, claims=[(claim.lease_id, claim.claim_token)]
    )
    assert beat.verdict == "preempted"
    await client.deregister_node(node.node_id)
    assert await client.list_nodes() == []
    with pytest.raises(errors.NodeUnknown):
        await client.cordon_node(node.node_id)


async def test_taints(client: AsyncClient, queue: str) -> None:
    node_id = uuid4()
    own = Taint(key="booting", effect="no_schedule")
    spec = NodeSpec(name="n3", instance_id="i", taints=[own])
    epoch = await client.register_node(node_id, spec)
    await client.taint_node(node_id, Taint(key="hot", value="very", effect="no_execute"))
    await client.taint_node(node_id, {"key": "hot", "effect": "prefer_no_schedule"})
    (node,) = await client.list_nodes()
    assert [(t.key, t.value, t.effect, t.by) for t in node.taints] == [
        ("booting", None, "no_schedule", "node"),
        ("hot", "very", "no_execute", "operator"),
        ("hot", None, "prefer_no_schedule", "operator"),
    ]
    assert all(taint.since.tzinfo for taint in node.taints)
    (match,) = await client.match_nodes({})
    assert [reason.code for reason in match.reasons] == ["untolerated_taint"] * 2
    page = await client.match_page({})
    assert (page.nodes, page.eligible, page.items) == (1, 0, (match,))
    assert page.reasons == {"untolerated_taint": 1}
    assert (await client.match_page({}, skip=1)).items == ()
    assert await client.untaint_node(node_id, "hot", effect="no_execute") == 1
    assert await client.untaint_node(node_id, "hot") == 1
    assert await client.untaint_node(node_id, "hot") == 0
    await client.spawn_lease(queue, "t")
    assert await client.claim_task([queue], node_id, epoch) == []
    assert await client.register_node(node_id, dataclasses.replace(spec, taints=())) == epoch
    assert len(await client.claim_task([queue], node_id, epoch)) == 1
    with pytest.raises(errors.BadArgument) as caught:
        await client.taint_node(node_id, {"key": "hot", "effect": "all"})
    assert caught.value.field == "taint.effect"


async def test_attestations(client: AsyncClient, node: Node) -> None:
    until = datetime(2100, 1, 1, tzinfo=UTC)
    await client.attest_node(node.node_id, "acme.prod", expires_at=until)
    await client.attest_node(node.node_id, "acme.test")
    (seen,) = await client.list_nodes()
    first, second = seen.attestations
    assert (first.domain, first.expires_at) == ("acme.prod", until)
    assert (second.domain, second.expires_at) == ("acme.test", None)
    assert first.attested_at.tzinfo
    assert first.attested_by
    assert (first.any_instance, first.suspended_at, first.suspended_why) == (False, None, None)
    await client.attest_node(node.node_id, "acme.test", any_instance=True)
    await client.hand_over_node(node.node_id, "hwqueue_worker")
    [seen] = await client.list_nodes(node_id=node.node_id)
    assert seen.login == "hwqueue_worker"
    for each in seen.attestations:
        assert each.suspended_at is not None
        assert each.suspended_why == 'it was handed over to login "hwqueue_worker"'
    with pytest.raises(errors.NodeSuperseded):
        await client.confirm_node(node.node_id, instance_id="another")
    assert await client.confirm_node(node.node_id, instance_id=seen.instance_id) == 2
    with pytest.raises(errors.BadArgument):
        await client.hand_over_node(node.node_id, "no such role")
    assert await client.revoke_attestation(node.node_id, "acme.prod")
    assert not await client.revoke_attestation(node.node_id, "acme.prod")
    with pytest.raises(errors.BadArgument) as caught:
        await client.attest_node(node.node_id, "d", expires_at=datetime(2000, 1, 1, tzinfo=UTC))
    assert caught.value.field == "expires_at"


async def test_service_policies(client: AsyncClient) -> None:
    service, other = uuid4(), uuid4()
    said = await client.set_service_policy(
        service, ServicePolicy(failure_domain="label:zone", anti_affinity_services=[other])
    )
    assert (said.failure_domain, said.anti_affinity_services) == ("label:zone", (other,))
    assert await client.service_policy(service) == said
    said = await client.set_service_policy(str(service), {"failure_domain": None})
    assert (said.failure_domain, said.anti_affinity_services) == (None, (other,))
    nothing = ServicePolicy(anti_affinity_services=())
    assert await client.service_policy(uuid4()) == nothing
    with pytest.raises(errors.BadArgument) as caught:
        await client.set_service_policy(service, ServicePolicy(failure_domain="zone"))
    assert caught.value.field == "policy.failure_domain"


async def test_matches_say_why_not(client: AsyncClient, queue: str, node: Node) -> None:
    (fits,) = await client.match_nodes(Placement().require(tags(gpu=True)), queue=queue)
    assert (fits.node_id, fits.node_name, fits.eligible, fits.reasons) == (node.node_id, "n1", True, ())
    (misses,) = await client.match_nodes({"require": [{"tags": {"zone": "b"}}]})
    assert not misses.eligible
    (reason,) = misses.reasons
    assert (reason.code, reason.permanent) == ("label_mismatch", True)
    assert reason.message
    with pytest.raises(errors.PlacementInvalid):
        await client.match_nodes({"requires": []})


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
