"""Bulk methods go through all pages and say what they did."""

import pytest

from hwqueue.client import AsyncClient
from hwqueue.errors import BadArgument
from hwqueue.types import BulkPage, LeaseChanges, LeaseSpec, LeaseState


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


async def test_a_page_at_a_time(client: AsyncClient, queue: str) -> None:
    await client.spawn_leases(queue, [LeaseSpec(task="t")] * 3)
    counted = await client.count_page(queue, page_size=2, states=["pending"])
    assert counted.lease_count == 2
    rest = await client.count_page(queue, page_size=2, states=["pending"], cursor=counted.next_cursor)
    assert (rest.lease_count, rest.next_cursor) == (1, None)
    changes: LeaseChanges = {"priority": 3}
    page = await client.change_page("update", queue, changes=changes, state="pending", page_size=2)
    assert len(page.changed) == 2
    page = await client.change_page(
        "update", queue, changes=changes, state="pending", cursor=page.next_cursor
    )
    assert (len(page.changed), page.next_cursor) == (1, None)
    page = await client.change_page("cancel", queue, reason="why", state="pending")
    assert len(page.changed) == 3
    for action in ("requeue", "delete"):
        page = await client.change_page(action, queue, state="cancelled", page_size=1)
        assert len(page.changed) == 1
    with pytest.raises(BadArgument, match="only update"):
        await client.change_page("cancel", queue, changes=changes)
    with pytest.raises(BadArgument, match="only cancel"):
        await client.change_page("delete", queue, reason="why")


async def test_find_by_key(client: AsyncClient, queue: str) -> None:
    spawned = await client.spawn_lease(queue, "t", idempotency_key="k", tenant="film")
    for tenant in (None, "film"):
        found = await client.find_lease(queue, "k", tenant=tenant)
        assert found is not None
        assert found.lease_id == spawned.lease_id
    assert await client.find_lease(queue, "k", tenant="games") is None
    assert await client.find_lease(queue, "other") is None
