"""What room on GPUs is worth, on the page of the fleet."""

from datetime import timedelta
from html import unescape
from uuid import uuid4

from hwqueue.client import Client
from hwqueue.types import Gpu, NodeSpec
from tests.dashboard.conftest import Pages
from tests.dashboard.test_pages import check

MINUTE = timedelta(minutes=1)
HEADING = "What room is worth"


def registered(sql: Client) -> None:
    """A queue, and a node with GPUs."""
    sql.create_queue("training")
    gpus = [Gpu(resource_id=uuid4()) for _ in range(8)]
    sql.register_node(uuid4(), NodeSpec(name="one", instance_id="1", gpus=gpus))


async def test_without_a_planner_nothing_is_said(pages: Pages, sql: Client) -> None:
    registered(sql)
    assert HEADING not in await pages.page("/fleet")


async def test_what_a_planner_says(pages: Pages, sql: Client) -> None:
    registered(sql)
    epoch = sql.lead_planner("<one>", ttl=MINUTE)
    assert epoch is not None
    curve = [0.0] * 50 + [0.4] * 50 + [0.81]
    assert sql.set_prices("training", curve, ttl=MINUTE, round=1, epoch=epoch) == "set"
    sql.note_room(gpus=8, allocated=5.5, bound=7.25, ttl=MINUTE, round=1, epoch=epoch)
    text = await pages.page("/fleet")
    check(text)
    shown = " ".join(unescape(text).partition(HEADING)[2].split())
    assert "planner <bdi><one></bdi>" in shown
    assert "5.5 of 8 GPUs are in use. 7.2 could be at most" in shown
    assert ">0.00<" in shown
    assert shown.count(">0.40<") == 2
    assert ">0.81<" in shown


async def test_a_planner_that_has_said_nothing_yet(pages: Pages, sql: Client) -> None:
    registered(sql)
    assert sql.lead_planner("one", ttl=MINUTE) is not None
    assert HEADING not in await pages.page("/fleet")
