"""What operators look at, and explanations, which come as dataclasses, whatever they hold."""

from uuid import UUID, uuid4

from hwqueue.client import AsyncClient
from hwqueue.placement import Placement, label
from hwqueue.types import FunnelStage, Gpu, LeaseState

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
