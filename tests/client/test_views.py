"""What operators look at, through both clients."""

from datetime import timedelta
from uuid import uuid4

import pytest

from hwqueue import errors
from hwqueue.client import AsyncClient
from hwqueue.types import Gpu, NodeSpec


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
    assert (usage.node_id, usage.claims, usage.gpu_milli_used, usage.gpus_free) == (
        node_id,
        1,
        1000,
        0,
    )
    assert await client.node_usage(after="n") == []
    [tag] = await client.tag_distribution(label="zone")
    assert (tag.value, tag.nodes, tag.live, tag.claims) == ("a", 1, 1, 1)
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
