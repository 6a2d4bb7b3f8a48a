"""What a worker hands back of what its node holds and it was not told of."""

from __future__ import annotations

import asyncio
from typing import Any, cast
from uuid import uuid4

import pytest

from hwqueue.app import App
from hwqueue.types import Heartbeat, NodeSpec, Verdict
from hwqueue.worker.session import NodeSession
from hwqueue.worker.settings import WorkerSettings
from hwqueue.worker.signals import Shutdown


class Client:
    """Its heartbeat finds a claim that was not named; its claims are answered when the test goes on."""

    def __init__(self) -> None:
        self.goes_on = asyncio.Event()
        self.released: list[Any] = []

    async def heartbeat_node(self, *_: Any, **__: Any) -> list[Heartbeat]:
        return [Heartbeat(lease_id=uuid4(), verdict=Verdict.UNNAMED, expires_at=None, claim_token=2)]

    async def settle_batch(self, _node: Any, _epoch: Any, batch: Any, **_: Any) -> list[Any]:
        self.released += batch.items
        if not batch.items:
            await self.goes_on.wait()
        return []


@pytest.mark.parametrize("ends", ["before", "meanwhile", "after"])
async def test_what_a_claim_under_way_may_have_granted_is_kept(ends: str) -> None:
    client = Client()
    settings = WorkerSettings(dsn="x", queues=("q",))
    spec = NodeSpec(name="n", instance_id="1")
    session = NodeSession(cast(Any, client), settings, spec, App(), Shutdown())
    claiming = asyncio.ensure_future(session.settle_and_claim([], 1))
    await asyncio.sleep(0)
    if ends == "before":
        client.goes_on.set()
        await claiming
    beating = asyncio.ensure_future(session.heartbeat([], 1.0))
    await asyncio.sleep(0)
    if ends == "meanwhile":
        client.goes_on.set()
        await claiming
    await beating
    assert [each["outcome"] for each in client.released] == (["release"] if ends == "before" else [])
    client.goes_on.set()
    await claiming
