"""What operators look at, and explanations, which come as dataclasses, whatever they hold."""

from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from hwqueue import errors
from hwqueue.client import AsyncClient
from hwqueue.placement import Placement, label
from hwqueue.types import FunnelStage, Gpu, LeaseState, NodeSpec
from tests.client.conftest import Node


async def test_why_work_is_pending(client: AsyncClient, queue: str) -> None:
    await client.register_node(uuid4(), NodeSpec(name="n", instance_id="i", cpu_milli=1000))
    for cpu in (500, 2000):
        placement = {"resources": {"cpu_milli": cpu}}
        await client.spawn_lease(queue, "t", placement=placement)
    fits, large = await client.pending_reasons(queue=queue)
    assert (fits.code, fits.nodes_matching, fits.nodes_free) == (None, 1, 1)
    assert (large.code, large.permanent, large.nodes_near) == ("insufficient_capacity", True, 1)
    assert large.resources == {"cpu_milli": 2000}
    assert await client.pending_reasons(kind="no_match") == [large]
    assert await client.pending_reasons(kind="contended") == []
    assert await client.pending_reasons(class_id=fits.class_id, order="pending", limit=1) == [fits]
    with pytest.raises(errors.QueueUnknown):
        await client.pending_reasons(queue="nobody-made-it")
    with pytest.raises(errors.BadArgument):
        await client.pending_reasons(kind="odd")


async def test_what_is_there_and_in_use(client: AsyncClient, queue: str) -> None:
    node_id = uuid4()
    spec = NodeSpec(
        name="n",
        instance_id="i",
        labels={"zone": "a"},
        gpus=[Gpu(resource_id=uuid4())],
        cores=[{"core": 0}, {"core": 1}],
        cpu_isolation=["whole_core"],
    )
    epoch = await client.register_node(node_id, spec)
    spawned = await client.spawn_lease(queue, "t", placement={"resources": {"gpu": 1}})
    [claim] = await client.claim_task([queue], node_id, epoch)
    [depth] = await client.queue_depth(queue=queue)
    assert (depth.pending, depth.running, depth.oldest_at) == (0, 1, None)
    [usage] = await client.node_usage(state="live", limit=5)
    assert (usage.node_id, usage.claims, usage.gpu_milli_used, usage.gpus_free) == (node_id, 1, 1000, 0)
    assert await client.node_usage(after="n") == []
    [tag] = await client.tag_distribution(label="zone")
    assert (tag.value, tag.nodes, tag.live, tag.claims) == ("a", 1, 1, 1)
    await client.reap()
    [stats] = await client.placement_class_stats(queue=queue)
    assert (stats.running, stats.anchors, stats.reach) == (1, ("*",), 1.0)
    assert await client.placement_class_stats(after=stats.class_id) == []
    steps = await client.lease_history(spawned.lease_id)
    assert [step.event for step in steps] == ["spawned", "claimed"]
    assert steps[1].claim_token == claim.claim_token
    assert isinstance(steps[0].lasted, timedelta)
    with pytest.raises(errors.LeaseNotFound):
        await client.lease_history(uuid4())
    [node] = await client.list_nodes()
    assert [core.core for core in node.cores] == [0, 1]
    assert sum(core.milli_used or 0 for core in node.cores) == 1
    assert node.isolation is not None
    assert node.isolation.cpu == ("best_effort", "whole_core")


SERVICE = uuid4()


async def register(client: AsyncClient, name: str, **spec: object) -> UUID:
    node_id = uuid4()
    await client.register_node(node_id, {"name": name, "instance_id": "i", **spec})
    return node_id


async def test_a_pending_lease(client: AsyncClient, queue: str) -> None:
    gpu = Gpu(resource_id=uuid4(), model="T4").as_json()
    full = await register(client, "full", labels={"zone": "a"}, gpus=[gpu])
    await register(client, "elsewhere", labels={"zone": "b"}, rack=4)
    asked = Placement().require(label("zone") == "a").resources(gpu=1)
    first = await client.spawn_lease(queue, "t", placement=asked, service_id=SERVICE)
    (claim,) = await client.claim_task([queue], full, 1)
    lease = await client.spawn_lease(queue, "t", placement=asked)
    found = await client.explain_lease(lease.lease_id)
    assert (found.state, found.code, found.permanent) == (
        LeaseState.PENDING,
        "nodes_support_but_contended",
        False,
    )
    assert (found.words, found.position, found.pending) == ("zone in a, 1 GPU", 0, 1)
    assert found.funnel is not None
    assert found.funnel[:4] == (
        FunnelStage(stage="live", nodes=2),
        FunnelStage(stage="cordon", nodes=2),
        FunnelStage(stage="served", nodes=2, unannounced=2),
        FunnelStage(stage="labels", nodes=1),
    )
    assert found.sole_blockers is not None
    (blocker,) = found.sole_blockers
    assert (blocker.words, blocker.samples) == ("1 GPU free", ("full",))
    assert blocker.predicate == {"resources": {"gpu": 1}}
    assert found.nearest is not None
    near, far = found.nearest
    assert (near.node_id, near.node, near.rack, near.state) == (full, "full", None, "live")
    (reason,) = near.reasons
    assert (reason.stage, reason.wanted, reason.has) == ("free", "1 GPU free", "0 GPU free")
    (holder,) = reason.holders
    assert (holder.lease_id, holder.service_id, holder.holds) == (first.lease_id, SERVICE, "1 GPU")
    assert holder.expires_at == claim.expires_at
    assert {reason.code for reason in far.reasons} == {"label_mismatch", "insufficient_capacity"}
    assert found.help is not None
    (one,) = found.help
    assert (one.action, one.lease_id, one.leases) == ("wait", first.lease_id, 1)
    of_class = await client.explain_class(found.class_id)
    assert (of_class.headline, of_class.nearest) == (found.headline, found.nearest)
    (waiting,) = of_class.leases
    assert (waiting.lease_id, waiting.attempt, waiting.deadline) == (lease.lease_id, 1, None)


async def test_leases_that_are_not_pending(client: AsyncClient, queue: str, node: Node) -> None:
    later = await client.spawn_lease(queue, "t", delay=timedelta(hours=1))
    found = await client.explain_lease(later.lease_id)
    assert (found.state, found.code) == (LeaseState.SCHEDULED, "scheduled")
    assert found.waits_until is not None
    assert (found.funnel, found.nearest, found.help, found.position) == (None,) * 4


async def test_what_if(client: AsyncClient, queue: str) -> None:
    asked = Placement().require(label("zone") == "a").resources(cpu_milli=1000)
    await client.spawn_lease(queue, "t", placement=asked)
    spec = NodeSpec(name="n", instance_id="i", labels={"zone": "a"}, cpu_milli=2000)
    (served,) = await client.what_if(spec)
    assert (served.queue, served.words, served.pending) == (queue, "zone in a, 1 CPU", 1)
    assert (served.fits_at_once, served.is_served_already) == (2, False)
    (served,) = await client.what_if([spec, {"labels": {"zone": "a"}, "count": 2}])
    assert served.fits_at_once is None
    assert await client.what_if({}) == []
    with pytest.raises(errors.BadArgument) as caught:
        await client.what_if([])
    assert caught.value.field == "nodes"
