"""Gangs on the pages: the list, one gang as a whole, its members' pages, and its end."""

import re
from typing import Any
from uuid import UUID, uuid4

import pytest
from playwright.sync_api import expect

from hwqueue.client import Client
from hwqueue.types import Claim, NodeSpec
from tests.dashboard.conftest import Pages
from tests.dashboard.test_accessible import violations
from tests.dashboard.test_browser import stay, stayed
from tests.dashboard.visits import Visit

MEMBER = {"task": "train", "options": {"affinity_tags": {"gpu": True}}}


def node(sql: Client, name: str, *, rack: int = 1) -> tuple[UUID, int]:
    """A node that takes one lease at a time."""
    node_id = uuid4()
    spec = NodeSpec(name=name, instance_id="1", labels={"gpu": True}, rack=rack, slots=1)
    return node_id, sql.register_node(node_id, spec)


def spawn(sql: Client, count: int = 2) -> UUID:
    """A gang whose members are to be in one rack."""
    members = [MEMBER | {"count": count}]
    return sql.spawn_gang("training", members, together="rack")[0].gang_id


def busy(sql: Client, on: tuple[UUID, int], **options: Any) -> list[Claim]:
    """Let a node run something that is of no gang."""
    sql.spawn_lease("training", "train", **options)
    return sql.claim_task(["training"], *on)


def settle(sql: Client, gang_id: UUID, state: str) -> None:
    """Let upkeep do what there is to do, until the gang leaves this state."""
    while sql.get_gang(gang_id).state == state:
        sql.reap()


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


async def test_cancel(pages: Pages, sql: Client) -> None:
    waits, gang_id = spawn(sql), spawn(sql)
    asked = await pages.page(f"/do/cancel-gang?gang={gang_id}")
    assert "Cancel this gang of 2 leases?" in asked
    assert "2 members end within about a second" in asked
    done = await pages.do("cancel-gang", str(gang_id), reason="wrong data")
    assert done.headers["location"] == f"/gangs/{gang_id}?done=cancel-gang"
    for _ in range(3):
        sql.reap()
    text = await pages.page(f"/gangs/{gang_id}")
    assert "Has been cancelled" in text
    assert "/do/cancel-gang" not in text
    listed = re.findall('<tr id="gang-([^"]+)"', await pages.page("/gangs"))
    assert listed == [str(waits), str(gang_id)], "what waits comes first, however old it is"
    await pages.page("/do/cancel-gang?gang=x", 404)


def test_a_waiting_gang_says_what_would_let_it_start(visit: Visit, sql: Client) -> None:
    """Whom to wait for or stop, or to ask for less; then it starts on the page that is open."""
    sql.set_queue_policy("training", {"earmarks": 0})
    nodes = [node(sql, "gpu-1"), node(sql, "gpu-2"), node(sql, "gpu-3", rack=2)]
    [claim] = busy(sql, nodes[1])
    gang_id = spawn(sql)
    sql.reap()
    page = visit.go("/leases")
    page.get_by_role("link", name="Gangs").click()
    [row] = page.get_by_role("region", name="Gangs").locator("tbody tr").all()
    expect(row).to_contain_text("waiting")
    row.get_by_role("link", name=f"…{str(gang_id)[-8:]}").click()
    why, members = page.locator("#why"), page.get_by_role("region", name="Members")
    expect(members.get_by_role("row", name="waits for room for all")).to_have_count(2)
    expect(members).to_contain_text("2 members are missing")
    expect(why).to_contain_text("No rack has room for all 2; rack 1 has room for 1")
    ways = why.locator("section", has_text="What would let it start").get_by_role("listitem")
    expect(ways).to_have_text(
        [
            "Anywhere all have room now spawn it without together",
            "Rack 1 has room for all once gpu-2 is empty",
            re.compile(f"^Rack 1 has room for all once lease {claim.lease_id} is stopped"),
            re.compile("^When rack 1 has room for all is not known: lease"),
        ]
    )
    expect(ways.get_by_role("link", name=f"…{str(claim.lease_id)[-8:]}")).to_be_visible()
    rack = why.get_by_role("row", name="rack 1")
    expect(rack.get_by_role("link", name=f"…{str(claim.lease_id)[-8:]}")).to_be_visible()
    expect(rack.get_by_role("link", name="gpu-2")).to_be_visible()
    assert violations(page) == []
    stay(page)
    sql.complete_lease(claim.lease_id, claim.claim_token)
    settle(sql, gang_id, "waiting")
    visit.refresh()
    expect(page.locator(".head")).to_contain_text("reserved")
    for name in ("gpu-1", "gpu-2"):
        expect(members.get_by_role("row", name=name)).to_contain_text("not fetched yet")
    expect(why).to_contain_text("2 members are reserved in rack 1 and not fetched")
    expect(ways).to_have_count(0)
    for node_id, epoch in nodes[:2]:
        assert sql.claim_task(["training"], node_id, epoch)
    settle(sql, gang_id, "reserved")
    visit.refresh()
    expect(page.locator(".head")).to_contain_text("running")
    expect(members).to_contain_text("all are there")
    expect(why).to_contain_text("2 members run in rack 1")
    assert stayed(page)
    page.get_by_role("link", name="Cancel", exact=True).click()
    expect(page.get_by_role("dialog")).to_contain_text("2 members run and are asked to stop")
