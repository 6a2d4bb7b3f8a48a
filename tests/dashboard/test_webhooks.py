"""Webhooks on the dashboard: how they go, their last deliveries, and what is done with them."""

import re

from hwqueue.client import Client
from tests.dashboard.conftest import Pages
from tests.dashboard.test_pages import HOSTILE, check

URL = "https://hooks.example/"


def made(sql: Client) -> str:
    """A webhook with a dead delivery, one that waits to be tried again and one that was taken."""
    secret = sql.set_webhook("pager", URL, codes=["none"], labels={"<em>": HOSTILE}, tenant="<em>")
    assert secret is not None
    for status, text in ((204, None), (500, HOSTILE), (410, None)):
        sql.test_webhook("pager")
        [each] = sql.claim_deliveries(1)
        sql.settle_delivery(each.delivery_id, each.attempt, status=status, response=text)
    return secret


async def test_a_webhook_and_its_deliveries(pages: Pages, sql: Client) -> None:
    secret = made(sql)
    listed = await pages.page("/webhooks")
    check(listed)
    assert 'href="/webhooks/pager"' in listed
    assert 'data-key="s" aria-current="page"' in listed
    text = await pages.page("/webhooks/pager")
    check(text)
    assert "<em>" not in text
    assert "the receiver answered 410" in text
    assert secret not in text + listed
    rows = re.findall(r'<tr id="delivery-[^"]+">(.*?)</tr>', text, re.DOTALL)
    states = [re.findall(r"</svg>(waiting|delivered|dead)<", row) for row in rows]
    assert states == [["dead"], ["waiting"], ["delivered"]]
    dead = await pages.page("/webhooks/pager?state=dead")
    assert len(re.findall('<tr id="delivery-', dead)) == 1
    assert len(re.findall('<tr id="delivery-', await pages.page("/webhooks/pager?state=x"))) == 3
    await pages.page("/webhooks/nobody", 404)


async def test_what_is_done_with_it(pages: Pages, sql: Client) -> None:
    made(sql)
    assert (await pages.do("resume-webhook", "pager")).headers["location"] == (
        "/webhooks/pager?done=resume-webhook"
    )
    assert sql.list_webhooks()[0].paused_at is None
    await pages.do("redeliver", "pager")
    assert sql.list_deliveries("pager", state="dead") == []
    await pages.do("test-webhook", "pager")
    assert len(sql.list_deliveries("pager")) == 4
    await pages.do("pause-webhook", "pager")
    assert sql.list_webhooks()[0].paused_reason == "asked"
    assert "Paused: nothing is sent" in await pages.page("/webhooks/pager?done=pause-webhook")
