"""Gangs on the pages: the list, one gang as a whole, its members' pages, and its end."""

import re
from uuid import UUID, uuid4

import pytest
from playwright.sync_api import expect

from hwqueue.client import Client
from hwqueue.types import NodeSpec
from tests.dashboard.conftest import Pages
from tests.dashboard.visits import Visit

MEMBER = {"task": "train", "options": {"affinity_tags": {"gpu": True}}}


def node(sql: Client, name: str) -> tuple[UUID, int]:
    """A node in rack 1 that takes one lease at a time."""
    node_id = uuid4()
    spec = NodeSpec(name=name, instance_id="1", labels={"gpu": True}, rack=1, slots=1)
    return node_id, sql.register_node(node_id, spec)


def spawn(sql: Client, count: int = 2) -> UUID:
    """A gang whose members are to be in one rack."""
    members = [MEMBER | {"count": count}]
    return sql.spawn_gang("training", members, together="rack")[0].gang_id


@pytest.fixture(autouse=True)
def queue(sql: Client) -> None:
    """What the gangs are spawned into."""
    sql.create_queue("training")


async def test_the_list_and_its_pages(pages: Pages, sql: Client) -> None:
    spawned = [spawn(sql) for _ in range(51)]
    first = await pages.page("/gangs")
    assert len(re.findall('<tr id="gang-', first)) == 50
    [follow] = re.findall('href="(/gangs[?]before=[^"]+)"', first)
    second = await pages.page(follow.replace("&amp;", "&"))
    assert re.findall('<tr id="gang-([^"]+)"', second) == [str(spawned[0])]
    assert "No gang fits" in await pages.page("/gangs?state=running")
    await pages.page("/gangs?before=x&before_gang=y&state=z")
    await pages.page("/gangs/x", 404)
    await pages.page(f"/gangs/{uuid4()}", 404)
    jumped = await pages.get(f"/jump?q={spawned[0]}")
    assert jumped.headers["location"] == f"/gangs/{spawned[0]}"


async def test_a_member_leads_to_its_gang(pages: Pages, sql: Client) -> None:
    gang_id = spawn(sql)
    member = sql.get_gang(gang_id).members[1]
    text = await pages.page(f"/leases/{member.lease_id}")
    assert f'href="/gangs/{gang_id}#member-1">rank 1 of 2</a>' in text
    assert "Waits until there is room for all 2 members of its gang" in text
    assert "9999" not in re.sub(r"<pre.*?</pre>", "", text, flags=re.S)
    own = {"gang_id": "of mine", "gang_rank": 0}
    single = sql.spawn_lease("training", "train", headers=own).lease_id
    assert "/gangs/" not in await pages.page(f"/leases/{single}")


async def test_cancel(pages: Pages, sql: Client) -> None:
    gang_id = spawn(sql)
    asked = await pages.page(f"/do/cancel-gang?gang={gang_id}")
    assert "Cancel this gang of 2 leases?" in asked
    assert "2 others end within about a second" in asked
    done = await pages.do("cancel-gang", str(gang_id), reason="wrong data")
    assert done.headers["location"] == f"/gangs/{gang_id}?done=cancel-gang"
    for _ in range(3):
        sql.reap()
    text = await pages.page(f"/gangs/{gang_id}")
    assert "Has been cancelled" in text
    assert "/do/cancel-gang" not in text
    await pages.page("/do/cancel-gang?gang=x", 404)


def test_a_gang_waits_a_node_comes_it_runs(visit: Visit, sql: Client) -> None:
    first = node(sql, "gpu-1")
    gang_id = spawn(sql)
    sql.reap()
    page = visit.go("/leases")
    page.get_by_role("link", name="Gangs").click()
    page.get_by_role("link", name=f"…{str(gang_id)[-8:]}").click()
    why = page.locator("#why")
    expect(why).to_contain_text("No rack has room for all 2; rack 1 has room for 1")
    expect(why.get_by_role("row", name="rack 1")).to_be_visible()
    members = page.get_by_role("region", name="Members")
    expect(members).to_contain_text("2 members are missing")
    second = node(sql, "gpu-2")
    while sql.get_gang(gang_id).state == "waiting":  # its next try is a second after the first
        sql.reap()
    visit.refresh()
    expect(members.get_by_role("row", name=re.compile("gpu-2"))).to_contain_text("not fetched yet")
    for node_id, epoch in (first, second):
        assert sql.claim_task(["training"], node_id, epoch)
    sql.reap()
    visit.refresh()
    expect(page.locator(".head")).to_contain_text("running")
    expect(members).to_contain_text("all are there")
    expect(why).to_contain_text("2 members run in rack 1")
    page.get_by_role("link", name="Cancel", exact=True).click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("2 members run and are asked to stop")
    dialog.get_by_role("button", name="Cancel the gang").click()
    expect(page.locator(".notice")).to_contain_text("being cancelled")
    expect(page.locator(".head")).to_contain_text("cancelling")
