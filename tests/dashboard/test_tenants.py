"""Tenants on the dashboard: what each uses of what it may, and who was asked to stop for whom."""

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pytest
from playwright.sync_api import expect

from hwqueue.client import Client
from hwqueue.types import NodeSpec
from tests.dashboard.conftest import Pages, granted
from tests.dashboard.test_pages import HOSTILE, check
from tests.dashboard.visits import Visit

NAME = HOSTILE[:90]
PAGE = f"/tenants/{quote(NAME, safe='')}"
N_1 = NodeSpec(name="n-1", instance_id="1")
ONE: dict[str, Any] = {"placement": {"resources": {"license": 1}}}


@pytest.fixture(autouse=True)
def _made(sql: Client) -> None:
    rate = {"count": 600, "per": "1 min"}
    sql.set_tenant("film", {"weight": 3, "pending": 100, "spawns": rate, "shared_with": ["lab"]})
    sql.set_tenant("lab", {"tier": "scavenger"})
    sql.create_queue("live", policy={"preempt": {"after": 0}})
    sql.create_queue("batch", policy={"earmarks": 0})


def preempted(sql: Client) -> tuple[str, str, str]:
    """A lease of lab that was asked to stop for one of film, that one, and the next of film that waits."""
    for _ in range(2):
        sql.spawn_lease("batch", "simulate", tenant="lab", **ONE)
    victim = granted(sql, "batch", custom={"license": 1}).lease_id
    first = sql.spawn_lease("live", "render", tenant="film", **ONE).lease_id
    sql.reap()
    assert sql.get_lease(victim).stop_reason == "tier_preempted"
    waits = sql.spawn_lease("live", "other", tenant="film", **ONE).lease_id
    return str(victim), str(first), str(waits)


async def test_what_each_uses_of_what_it_may(pages: Pages, sql: Client) -> None:
    sql.set_tenant("film", {"slots": 2})
    for _ in range(4):
        sql.spawn_lease("live", "render", tenant="film")
    sql.spawn_lease("live", "render", tenant=NAME)
    sql.spawn_lease("live", "render")
    sql.set_tenant("*", {"tier": "best_effort", "classes": 7})
    sql.create_limit("turns", {"fair": True, "by": "tenant"})
    sql.create_limit("weighed", {"fair": True, "by": "tenant", "weights": {"film": 2}})
    sql.reap()
    node = uuid4()
    assert len(sql.claim_task(["live"], node, sql.register_node(node, N_1), qty=9)) == 4
    listed = await pages.page("/tenants")
    assert check(listed).loose == []
    rows = dict(re.findall(r'<tr id="tenant-(\w*|\*)">(.*?)</tr>', listed, re.DOTALL))
    assert list(rows) == ["film", "", "*", "lab"], "the busiest first"
    for told in ("2 / 2", ">2<", "2 / 100", ">67 %<", ">75 %<"):
        assert told in rows["film"], told
    assert "at most 7" in rows["*"]
    assert re.findall('href="/limits/([^"]+)"', listed) == ["turns"], "the others have weights of their own"
    film = await pages.page("/tenants/film")
    check(film)
    told_of = ("2 at once", "100 wait", "75 % by weight", "no bound", "600 in 1 min", "<dd>lab</dd>")
    for told in told_of:
        assert told in film, told
    for path in (PAGE, "/tenants/*"):
        assert check(await pages.page(path)).loose == []
    assert "Nothing is known of this tenant" in await pages.page("/tenants/nobody", 404)


async def test_its_logins_and_nodes(pages: Pages, sql: Client) -> None:
    sql.grant_tenant("hwqueue_tenants", "film", ["spawn"])
    sql.set_tenant("film-2", {})
    node = uuid4()
    sql.register_node(node, N_1)
    sql.set_node_tenants(node, ["film", "lab"])
    film = await pages.page("/tenants/film")
    check(film)
    for told in ("hwqueue_tenants", "read, spawn", 'href="/nodes/n-1"', 'href="/tenants/lab"'):
        assert told in film, told
    text = await pages.page("/nodes/n-1")
    check(text)
    assert "It is for 2 tenants alone" in text
    assert "for <bdi>film, lab</bdi>" in await pages.page("/fleet")
    jumped = await pages.get("/jump?q=lab")
    assert jumped.headers["location"] == "/tenants/lab"
    assert 'href="/tenants/film-2"' in await pages.page("/jump?q=ilm")


async def test_who_may_look(guarded: Pages, sql: Client, token: Callable[..., str]) -> None:
    """Viewers, but for previews; who is for one tenant hears of no other, nor of its leases."""
    victim, _, waits = preempted(sql)
    for role, shown in (("viewer", False), ("operator", True)):
        guarded.headers["Authorization"] = f"Bearer {token(role)}"
        assert "film" in await guarded.page(f"/leases/{victim}")
        assert ('aria-label="Preemption"' in await guarded.page(f"/leases/{waits}/why")) == shown
    guarded.headers["Authorization"] = f"Bearer {token('operator', 'lab')}"
    for path in ("/tenants", "/tenants/lab", f"/leases/{victim}", f"/leases/{waits}/why", "/jump?q=fil"):
        told = await guarded.page(path, 403)
        assert "you may see lab only" in told
        assert "film" not in told
    for path in ("/tenants", "/tenant-usage", "/preemptions", f"/leases/{waits}/preemption"):
        response = await guarded.get(f"/api/v1{path}")
        assert response.status_code == 403
        assert "film" not in response.text


def test_who_was_asked_to_stop_for_whom(visit: Visit, sql: Client) -> None:
    """From the list to the lease that goes, to whom it goes for, and to what one that waits would do."""
    victim, first, _ = preempted(sql)
    page = visit.go("/")
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Tenants").click()
    [row] = page.get_by_role("region", name="Preempted").locator("tbody tr").all()
    for told in (f"…{victim[-8:]}", "lab scavenger", "n-1", f"…{first[-8:]}", "film guaranteed"):
        expect(row).to_contain_text(told)
    row.get_by_role("link", name=f"…{victim[-8:]}").click()
    said = page.locator("main .say")
    expect(said).to_contain_text(f"was asked to stop for lease …{first[-8:]} of tenant film (guaranteed), by")
    said.get_by_role("link", name="film").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("film")
    expect(page.get_by_role("region", name="Preempted").locator("tbody tr")).to_have_count(1)


def test_the_preview_of_one_that_waits(visit: Visit, sql: Client) -> None:
    """Operators see whom it would ask to stop; where its queue has no such policy nobody does."""
    sql.spawn_lease("batch", "simulate", tenant="lab", **ONE)
    victim = str(granted(sql, "batch", custom={"license": 1}).lease_id)
    leases = [sql.spawn_lease(queue, "render", tenant="film", **ONE).lease_id for queue in ("live", "batch")]
    page = visit.go(f"/leases/{leases[0]}")
    preview = page.get_by_role("region", name="Preemption")
    expect(preview).to_contain_text("To run it on n-1 would ask 1 lease to stop.")
    expect(preview.get_by_role("row", name="simulate")).to_contain_text("lab")
    expect(preview.get_by_role("link", name=f"…{victim[-8:]}")).to_be_visible()
    assert sql.get_lease(victim).stop_reason is None
    page = visit.go(f"/leases/{leases[1]}")
    expect(page.get_by_role("region", name="Preemption")).to_have_count(0)
    expect(page.locator("#why")).to_contain_text("Which nodes are left")
