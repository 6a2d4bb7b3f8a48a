"""Schedules on the dashboard: when they fire, what came of it, and what is done with them."""

import re
from urllib.parse import quote

import pytest

from hwqueue.client import Client
from tests.dashboard.conftest import Pages
from tests.dashboard.test_pages import HOSTILE, check

SPAN = ("2026-03-28", "2026-03-30T00:00")
NAME = "mail/nightly"
PAGE = f"/schedules/{quote(NAME, safe='')}"


@pytest.fixture(autouse=True)
def _made(sql: Client) -> None:
    sql.create_queue("q")
    spec = {"cron": "0 2 * * *", "zone": "Europe/Berlin", "queue": "q", "task": "report"}
    sql.create_schedule(NAME, spec | {"params": {"secret": "hunter2", "of": HOSTILE}})


async def test_when_it_fires_in_words(pages: Pages, sql: Client) -> None:
    hostile = {"every": 3600, "queue": "q", "task": "t", "options": {"labels": {"a": HOSTILE}}}
    sql.create_schedule("often", hostile)
    sql.create_schedule("lost", {"times": ["2999-01-01T00:00:00Z"], "queue": "q", "task": "t"})
    sql.drop_queue("q", force=True)
    assert sql.trigger_schedule("lost").outcome == "failed"
    listed = await pages.page("/schedules")
    check(listed)
    rows = re.findall('<tr id="schedule-([^"]*)"', listed)
    assert rows[0] == "lost"  # what is wrong comes first
    for told in (f'href="{PAGE}"', "At 02:00 every day, Europe/Berlin", "Every 1 h", "At 1 time"):
        assert told in listed
    for path in (PAGE, "/schedules/often", "/schedules/lost"):
        text = await pages.page(path)
        check(text)
        assert "hunter2" not in text
        assert ("Its last time spawned nothing" in text) == (path == "/schedules/lost")
    assert len(re.findall("<li>", await pages.page(PAGE))) == 5
    await pages.page("/schedules/none", 404)


async def test_what_is_done_with_it(pages: Pages, sql: Client) -> None:
    assert (await pages.do("pause-schedule", NAME, reason="<b>leave")).headers["location"] == (
        f"{PAGE}?done=pause-schedule"
    )
    text = await pages.page(PAGE)
    check(text)
    assert "&lt;b&gt;leave" in text
    assert "<li>" not in text  # nothing comes
    await pages.do("resume-schedule", NAME)
    assert sql.get_schedule(NAME).paused_at is None
    await pages.do("trigger-schedule", NAME)
    preview = await pages.page(f"{PAGE}?since={SPAN[0]}&until={SPAN[1]}")
    check(preview)
    assert "2 of 2 times would fire" in preview
    assert [fire.cause for fire in sql.schedule_history(NAME)] == ["trigger"]
    subject = " ".join((*SPAN, NAME))
    asked = await pages.page(f"/do/backfill?times={quote(subject)}")
    assert "2026-03-29 01:00 UTC" in asked  # 02:00 is left out that night
    assert (await pages.do("backfill", subject)).headers["location"] == f"{PAGE}?done=backfill"
    causes = [fire.cause for fire in sql.schedule_history(NAME)]
    assert causes == ["trigger", "backfill", "backfill"]
    assert "0 of 2 times would fire" in await pages.page(f"{PAGE}?since={SPAN[0]}&until={SPAN[1]}")
    for wrong in ("since=x&until=y", "since=2026-03-28&until=2999-01-01"):
        await pages.page(f"{PAGE}?{wrong}", 422)
