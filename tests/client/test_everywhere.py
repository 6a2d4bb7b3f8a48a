"""Everywhere tasks, through both clients."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from hwqueue.client import AsyncClient
from hwqueue.errors import BadArgument, EverywhereExists, EverywhereNotFound
from tests.client.conftest import Node


async def reap(client: AsyncClient) -> None:
    """As upkeep does about once a second; several times, since changes make others."""
    for _ in range(3):
        await client.reap()


async def test_from_spawned_to_stopped(client: AsyncClient, queue: str, node: Node) -> None:
    own = uuid4()
    options: dict[str, Any] = {
        "everywhere_id": own,
        "mode": "once",
        "on_unmatched": "stop",
        "claim_timeout": timedelta(seconds=30),
    }
    spawned = await client.spawn_everywhere(queue, "agent", {"n": 1}, **options)
    assert (spawned.everywhere_id, spawned.created, spawned.nodes) == (own, True, 1)
    again = await client.spawn_everywhere(queue, "agent", {"n": 1}, **options)
    assert (again.everywhere_id, again.created) == (own, False)
    await reap(client)
    found = await client.get_everywhere(own)
    assert (found.state, found.mode, found.on_unmatched) == ("active", "once", "stop")
    assert (found.queue, found.task_name, found.params) == (queue, "agent", {"n": 1})
    [lease] = found.leases
    assert (lease.node_id, lease.state, lease.starts) == (node.node_id, "reserved", 1)
    assert (await client.get_everywhere(own, after=lease.node_id)).leases == ()
    [claim] = await client.claim_task([queue], node.node_id, node.epoch)
    assert claim.lease_id == lease.lease_id
    await client.complete_lease(claim.lease_id, claim.claim_token)
    await reap(client)
    assert (await client.get_everywhere(own, limit=0)).completed == 1
    assert await client.stop_everywhere(own, running="stop") == "stopping"
    await reap(client)
    [listed] = [e for e in await client.list_everywhere(state="stopped") if e.everywhere_id == own]
    assert (listed.nodes, listed.running, listed.task_name) == (1, 0, "agent")
    assert await client.list_everywhere(before=listed.created_at, state="active") == []


async def test_errors(client: AsyncClient, queue: str) -> None:
    own = (await client.spawn_everywhere(queue, "agent")).everywhere_id
    with pytest.raises(EverywhereExists):
        await client.spawn_everywhere(queue, "other", everywhere_id=own)
    with pytest.raises(BadArgument, match="claim_timeout"):
        await client.spawn_everywhere(queue, "agent", claim_timeout=3)  # type: ignore[arg-type]
    for call in (client.get_everywhere, client.stop_everywhere):
        with pytest.raises(EverywhereNotFound):
            await call(uuid4())
    assert await client.stop_everywhere(own) == "stopping"
