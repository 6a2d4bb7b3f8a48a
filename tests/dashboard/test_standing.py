"""What needs somebody, on the overview and above every page; what the tabs count."""

import re
from datetime import timedelta
from html import unescape
from typing import Any
from uuid import uuid4

import psycopg
from playwright.sync_api import expect

from hwqueue.client import Client
from hwqueue.testing import install_clock
from hwqueue.types import NodeSpec
from tests.dashboard.conftest import Pages
from tests.dashboard.test_accessible import violations
from tests.dashboard.test_pages import check
from tests.dashboard.visits import Visit

NOWHERE: dict[str, Any] = {"require": [{"label": "gpu_model", "op": "in", "values": ["H100"]}]}


def worker(sql: Client, name: str, *tasks: str) -> None:
    """A node whose worker has these tasks."""
    labels = {"gpu_model": "L4"}
    spec = NodeSpec(name=name, instance_id="1", labels=labels, tasks=list(tasks), queues=["renders"])
    sql.register_node(uuid4(), spec)


def told(page: str, part: str) -> list[str]:
    """The texts of the links in a part of a page."""
    found = re.search(rf'<(div|ul) class="{part}".*?</\1>', page, re.DOTALL)
    links = re.findall(r"<a [^>]*>(.*?)</a>", found[0]) if found else []
    return [unescape(re.sub(r"<[^>]+>", "", each)) for each in links]


async def test_what_stops_everything_is_above_every_page(pages: Pages, sql: Client, dsn: str) -> None:
    sql.create_queue("renders")
    sql.spawn_lease("renders", "draw")
    sql.reap()
    nobody = "1 lease waits, and no node is registered"
    assert told(await pages.page("/"), "alarms") == [nobody]
    assert told(await pages.page("/queues"), "alarms") == [nobody]
    with psycopg.connect(dsn, autocommit=True) as connection:
        install_clock(connection).advance(timedelta(minutes=3))
    pages.app.state.dashboard.reads.forget()
    page = await pages.page("/standing?at=queues")
    late = "Upkeep has not run for 3 min: leases of dead workers do not come back"
    assert told(page, "alarms") == [late, nobody]
    assert re.search(r'data-key="q" aria-current="page"', page)


async def test_the_worst_is_first_and_the_largest(pages: Pages, sql: Client) -> None:
    sql.create_queue("renders")
    sql.create_queue("night")
    worker(sql, "n-1", "draw")
    sql.spawn_lease("renders", "draw", placement=NOWHERE)
    for task, count in (("cut", 1), ("mix", 3), ("sort", 2), ("tell", 1), ("zip", 1)):
        for _ in range(count):
            sql.spawn_lease("renders", task)
    sql.spawn_lease("night", "draw", placement=NOWHERE)
    sql.pause_queue("night")
    sql.spawn_gang("night", [{"task": "draw", "count": 2, "options": {"placement": NOWHERE}}])
    sql.reap()
    page = await pages.page("/")
    check(page)
    assert told(page, "alarms") == [
        "No worker has task mix: 3 leases wait for one",
        "No worker has task sort: 2 leases wait for one",
        "No worker has task cut: 1 lease waits for one",
        "No worker has 2 more tasks: 2 leases in all",
    ]
    assert told(page, "concerns") == ["2 leases cannot run anywhere", "1 queue is paused"]
    counted = re.findall(r'class="count (\w*)" title="([^"]+)"', page)
    assert counted == [("", "10 pending"), ("", "1 waiting"), ("warn", "1 paused")]


def test_the_tabs_count_without_a_reload(visit: Visit, sql: Client) -> None:
    sql.create_queue("renders")
    sql.reap()
    page = visit.go("/queues")
    tab = page.locator(".tabs [data-key=p]")
    expect(tab).to_have_text("Pending")
    sql.spawn_lease("renders", "draw")
    visit.refresh()
    expect(tab).to_contain_text("1 pending")
    expect(page.locator(".alarms p")).to_contain_text("no node is registered")
    expect(page.locator(".tabs [aria-current]")).to_have_text("Queues")
    page.keyboard.press("g")
    page.keyboard.press("a")
    expect(page).to_have_url(re.compile("/gangs$"))
    expect(page.locator(".tabs [aria-current]")).to_have_text("Gangs")
    assert violations(page) == []


def test_names_are_suggested_while_one_types(visit: Visit, sql: Client) -> None:
    sql.create_queue("renders")
    worker(sql, "a-render-box", "draw")
    worker(sql, "render-box", "draw")
    sql.spawn_lease("renders", "render-film")
    page = visit.go("/queues")
    page.keyboard.press("/")
    page.keyboard.type("rend")
    options = page.locator("#names option")
    expect(options).to_have_count(4)
    found = [(option.get_attribute("value"), option.text_content()) for option in options.all()]
    assert found[:3] == [("render-box", "node"), ("renders", "queue"), ("render-film", "task")]
    assert found[3] == ("a-render-box", "node")  # it does not begin with it
    page.keyboard.type("er-film")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile(r"/leases\?task=render-film$"))
