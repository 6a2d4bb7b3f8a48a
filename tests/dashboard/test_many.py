"""More classes than the database has words for."""

from hwqueue.client import Client
from tests.dashboard.conftest import Pages


async def test_classes_beyond_the_first_hundreds_are_counted_and_can_be_opened(
    pages: Pages, sql: Client
) -> None:
    sql.create_queue("many")
    sql.spawn_leases(
        "many",
        [
            {"task": "t", "options": {"placement": {"resources": {"cpu_milli": 1 + number}}}}
            for number in range(501)
        ],
    )
    text = await pages.page("/pending")
    assert "501 leases in 501 placement classes" in text
    text = await pages.page("/pending?page=10")
    assert "class 501" in text
    assert "0.501 CPU" in await pages.page("/pending/501")
