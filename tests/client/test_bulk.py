"""Bulk methods go through all pages and say what they did."""

from hwqueue.client import AsyncClient
from hwqueue.types import BulkPage, LeaseSpec, LeaseState


async def test_all_pages(client: AsyncClient, queue: str) -> None:
    films = ["7", "8", "7", "7", "8"]
    specs = [LeaseSpec(task="t", options={"labels": {"film": film}}) for film in films]
    await client.spawn_leases(queue, specs)
    pages: list[BulkPage] = []
    assert await client.count_leases(queue, page_size=2) == 5
    assert await client.count_leases(queue, page_size=2, labels={"film": "7"}) == 3
    assert await client.count_leases(queue, states=["claimed"]) == 0
    changed = await client.update_leases(queue, {"priority": 5}, labels={"film": "8"}, page_size=2)
    assert (changed.changed, changed.skipped) == (2, ())
    found = await client.cancel_leases(
        queue, reason="why", labels={"film": "7"}, page_size=2, on_progress=pages.append
    )
    assert found.changed == sum(len(page.changed) for page in pages) == 3
    assert len(pages) >= 3
    cancelled = await client.list_leases(queue=queue, state=LeaseState.CANCELLED)
    assert {lease.labels["film"] for lease in cancelled} == {"7"}
    again = await client.requeue_leases(queue, state=LeaseState.CANCELLED)
    assert again.changed == 3
    await client.cancel_leases(queue)
    assert (await client.delete_leases(queue)).changed == 5
    assert await client.list_leases(queue=queue) == []


async def test_find_by_key(client: AsyncClient, queue: str) -> None:
    spawned = await client.spawn_lease(queue, "t", idempotency_key="k", tenant="film")
    for tenant in (None, "film"):
        found = await client.find_lease(queue, "k", tenant=tenant)
        assert found is not None
        assert found.lease_id == spawned.lease_id
    assert await client.find_lease(queue, "k", tenant="games") is None
    assert await client.find_lease(queue, "other") is None
