"""Limits on the dashboard: what is in use, what waits and for how long, and what is done about it."""

import re
from collections.abc import Callable
from html import unescape
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from hwqueue.client import Client
from tests.dashboard.conftest import Pages, csrf, granted
from tests.dashboard.test_pages import HOSTILE, check
from tests.dashboard.visits import Visit

NAME = "per/user"
PAGE = f"/limits/{quote(NAME, safe='')}"
TURN = "turns"


@pytest.fixture(autouse=True)
def _made(sql: Client) -> None:
    sql.create_limit(NAME, {"slots": 1, "by": "key"})
    sql.create_limit(TURN, {"fair": True, "by": "key"})
    sql.create_limit("few", {"slots": 2})
    sql.create_limit("api", {"rate": {"count": 1, "per": 3600, "burst": 1}})
    sql.create_queue("q", policy={"limits": ["api"]})
    sql.create_queue("other")


def parked(sql: Client, limit: str, keys: list[str], tenant: str = "acme") -> None:
    """Two leases of each key; the first of a slots limit passes."""
    for key in keys * 2:
        sql.spawn_lease("other", "call", limits={limit: key}, tenant=tenant)
    sql.reap()


def rows(text: str, prefix: str) -> list[str]:
    return [unescape(each) for each in re.findall(f'<tr id="{prefix}-([^"]*)"', text)]


async def test_the_worst_first_and_the_limit_of_a_queue(pages: Pages, sql: Client) -> None:
    parked(sql, NAME, ["a", "b"])
    for _ in range(3):
        sql.spawn_lease("q", "call")
    sql.spawn_lease("other", "call", limits=["few"])
    sql.reap()
    listed = await pages.page("/limits")
    check(listed)
    assert rows(listed, "limit") == [NAME, "api", "few", TURN]  # as many wait, the first ones longer
    for told in ("1 in 3600 s, 1 at once", "2 in 2 keys", "1 / 2", 'href="/queues/q"', f'href="{PAGE}"'):
        assert told in listed
    text = await pages.page("/queues/q")
    check(text)
    assert rows(text, "limit") == ["api"]
    assert 'href="/limits/api"' in text
    await pages.page("/limits/none", 404)
    text = await pages.page("/pending")
    check(text)
    assert "wait for a limit <strong>4</strong>" in text
    assert len(re.findall('<tr id="class-', await pages.page("/pending?kind=limit"))) == 2


async def test_ten_keys_of_each_order_and_pages_of_all(pages: Pages, sql: Client) -> None:
    keys = [f"k{number:02}" for number in range(51)]
    parked(sql, NAME, keys, tenant=HOSTILE[:90])
    parked(sql, NAME, [HOSTILE])
    first = await pages.page(PAGE)
    check(first)
    assert {order: len(rows(first, order)) for order in ("parked", "wait")} == {"parked": 10, "wait": 10}
    seen: list[str] = []
    path: str | None = f"{PAGE}?order=wait"
    while path:
        text = await pages.page(path)
        assert check(text).loose == []
        assert "<b id=" not in text
        seen += rows(text, "wait")
        link = re.search(r'<a class="button" href="([^"]+)">Next', text)
        path = unescape(link[1]) if link else None
    assert [each[-3:] for each in seen] == [*keys, quote(HOSTILE)[-3:]]
    await pages.page(f"{PAGE}?order=x&page=999999999")


async def test_lanes_are_closed_and_opened(pages: Pages, sql: Client) -> None:
    parked(sql, NAME, [HOSTILE])
    lane = rows(await pages.page(PAGE), "wait")[0]
    asked = await pages.page(f"/do/throttle?lane={quote(lane)}")
    assert f"key {HOSTILE} of acme in limit {NAME}?" in unescape(asked)
    for subject, limit in ((lane, NAME), ("api", "api")):
        done = await pages.do("throttle", subject, span="900")
        assert done.headers["location"] == f"/limits/{quote(limit, safe='')}?done=throttle"
        assert "closed until" in (await pages.page(done.headers["location"])).lower()
        assert sql.limit_lanes(limit)[0].closed_until is not None
        await pages.do("unthrottle", subject)
        assert sql.limit_lanes(limit)[0].closed_until is None
    for subject, span, status in (("a/b", "60", 422), ("api", "7", 422), ("none", "60", 404)):
        asked = await pages.page("/do/throttle?lane=api")
        fields = {"csrf": csrf(asked), "subject": subject, "span": span}
        assert (await pages.post("/do/throttle", data=fields)).status_code == status


async def test_who_may(guarded: Pages, sql: Client, token: Callable[..., str]) -> None:
    """Viewers look, operators close, admins weigh; who sees one tenant sees no keys at all."""
    parked(sql, TURN, ["u42"])
    lane, page = f"{TURN}/acme/u42", f"/limits/{TURN}"
    for role, may in (("viewer", ()), ("operator", ("throttle",)), ("admin", ("throttle", "weigh"))):
        guarded.headers["Authorization"] = f"Bearer {token(role)}"
        assert set(re.findall('href="/do/([a-z]+)', await guarded.page(page))) == set(may)
        for verb in {"throttle", "weigh"} - set(may):
            await guarded.page(f"/do/{verb}?lane={lane}", 403)
            answer = await guarded.post(f"/do/{verb}", data={"subject": lane, "weight": "2", "span": "60"})
            assert (answer.status_code, "takes the role" in answer.text) == (403, True)
    assert (await guarded.do("weigh", lane, weight="2.5")).status_code == 303
    assert sql.limit_lanes(TURN)[0].weight == 2.5
    for wrong in ("", "x", "nan", "0"):
        assert (await guarded.do("weigh", lane, weight=wrong)).status_code == 422
    guarded.headers["Authorization"] = f"Bearer {token('operator', 'beta')}"
    for path in ("/limits", page, f"/do/throttle?lane={lane}"):
        assert "u42" not in (await guarded.page(path, 403)).replace(lane, "")


def test_a_lease_says_its_place_and_who_has_the_slots(visit: Visit, sql: Client) -> None:
    parked(sql, NAME, ["u42"])
    waits = sql.limit_lanes(NAME)[0].lease_id
    assert waits is not None
    runs = granted(sql, "other").lease_id
    page = visit.go(f"/leases/{waits}")
    told = page.locator("#why .say")
    expect(told).to_contain_text(
        f"1st of 1 of key u42 in limit {NAME}; 1 of 1 slots are in use: {runs} runs on n-1"
    )
    assert sql.explain_lease(waits).headline in told.inner_text()
    told.get_by_role("link", name=str(runs)).click()
    expect(page.locator("main .say")).to_contain_text("Runs on n-1")
