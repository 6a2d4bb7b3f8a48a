"""How settings, errors and times are written; what is vendored is what it was."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4
from zoneinfo import ZoneInfo

from playwright.sync_api import Browser, expect

from hwqueue.client import Client
from hwqueue.dashboard import formatting
from hwqueue.dashboard.charts import life, spark
from hwqueue.types import Attempt, Lease, LeaseState
from tests.dashboard.visits import visiting
from tests.unit.claims import bare


def test_secrets_are_not_shown() -> None:
    text = formatting.pretty({"api_key": "abc", "list": [{"Password": "def"}], "number": 2**62 + 1})
    assert "abc" not in text
    assert "def" not in text
    assert str(2**62 + 1) in text


def test_settings_are_written_exactly_and_names_sort_as_people_count() -> None:
    assert formatting.policy("claim_timeout", 90) == "1 min 30 s"
    assert formatting.policy("max_params_bytes", 65_536) == "64 KiB"
    assert formatting.policy("plain", True) == "yes"
    assert formatting.policy("earmarks", 200) == "200"
    tuning = {"notify": True, "window_size": 200, "earmark_time": 600}
    assert formatting.policy("tuning", tuning) == "notify yes, window_size 200, earmark_time 10 min"
    assert sorted(["n-10", "n-9", "m"], key=formatting.natural) == ["m", "n-9", "n-10"]


def test_the_vendored_files_are_what_the_manifest_says() -> None:
    script = Path(__file__).parents[2] / "tools" / "vendor_static.py"
    subprocess.run([sys.executable, str(script)], check=True)


def test_a_line_has_gaps_where_nothing_is_known_and_the_life_of_a_lease_none() -> None:
    assert len(spark([1.0, 2.0, None, 3.0, 4.0])) == 2
    assert spark([1.0]) == []
    start = datetime(2026, 1, 1, 12, tzinfo=UTC)

    def at(seconds: int) -> datetime:
        return start + timedelta(seconds=seconds)

    attempt = Attempt(
        attempt=1,
        claim_token=1,
        node_id=uuid4(),
        outcome="failed",
        claimed_at=at(10),
        ended_at=at(30),
        error=None,
    )
    lease = bare(Lease, state=LeaseState.PENDING, attempts=(attempt,), created_at=at(0), available_at=at(40))
    first, second = life(lease, at(100))
    assert [(part.state, part.left, part.width) for part in first.stretches] == [
        ("pending", 0, 10),
        ("failed", 10, 20),
    ]
    assert [(part.state, part.left, part.width) for part in second.stretches] == [
        ("scheduled", 30, 10),
        ("pending", 40, 60),
    ]
    assert second.stretches[-1].open
    again = replace(lease, attempts=(replace(attempt, outcome="completed"),))
    assert life(again, at(100))[0].stretches[1].state == "completed", "a retry of its run"
    done = replace(lease, state=LeaseState.COMPLETED, claimed_at=at(60), finished_at=at(80))
    last = life(done, at(100))[-1].stretches
    assert [part.state for part in last] == ["scheduled", "pending", "completed"]
    assert last[-1].left + last[-1].width == 100


ZONE = "Asia/Tokyo"


def test_in_the_readers_zone(browser: Browser, dsn: str, sql: Client) -> None:
    sql.create_queue("renders")
    lease = sql.get_lease(sql.spawn_lease("renders", "draw", delay=timedelta(days=3)).lease_id)
    assert lease.available_at is not None
    there = lease.available_at.astimezone(ZoneInfo(ZONE))
    with visiting(browser, dsn, timezone_id=ZONE) as visit:
        page = visit.go(f"/leases/{lease.lease_id}")
        when = page.locator(".say time")
        expect(when).to_have_attribute("title", formatting.exact(lease.available_at))
        expect(when).to_have_attribute("datetime", formatting.iso(lease.available_at))
        expect(when).to_have_text(re.compile(rf"{there:%Y-%m-%d %H:%M:%S} GMT\+9, in [23] d \d+ h"))
        # of today the time alone
        made = lease.created_at.astimezone(ZoneInfo(ZONE))
        expect(page.locator("header time").first).to_have_text(
            re.compile(rf"^({made:%Y-%m-%d} )?{made:%H:%M:%S} GMT\+9, \d+ s ago$")
        )
        expect(page.locator("#zone")).to_have_text(ZONE)
        # a refresh brings UTC, and it is written anew
        visit.refresh()
        expect(when).to_contain_text("GMT+9")
        # a switch turns all of them to UTC, and is kept
        page.get_by_role("button", name="GMT+9").click()
        expect(when).to_contain_text(f"{lease.available_at:%Y-%m-%d %H:%M:%S} UTC, in")
        page.reload()
        expect(when).to_contain_text(f"{lease.available_at:%Y-%m-%d %H:%M:%S} UTC, in")
        expect(page.locator("#zone")).to_have_text("UTC")


def test_how_long_ago_stays_true(browser: Browser, dsn: str, lease: UUID) -> None:
    with visiting(browser, dsn) as visit:
        # this browser's clock is a day behind
        visit.page.clock.install(time=datetime.now(UTC) - timedelta(days=1))
        page = visit.go(f"/leases/{lease}?live=off")
        when = page.locator("header time .rel").first
        expect(when).to_have_text(re.compile(r"^(now|\d+ s ago)$"))
        expect(page.locator("#why a[href$='/why']")).to_have_count(0)  # else it takes ten minutes
        page.clock.fast_forward(10 * 60_000)
        expect(when).to_have_text("10 min ago")
        visit.go("/queues?live=off")
        oldest = page.locator("time[data-age] .rel")
        expect(oldest).to_have_text(re.compile(r"^\d+ s$"))
        page.clock.fast_forward(90 * 60_000)
        expect(oldest).to_have_text("1 h 30 min")


def test_without_a_script_it_is_utc_and_a_page_to_load_again(
    browser: Browser, dsn: str, sql: Client, lease: UUID
) -> None:
    made = sql.get_lease(lease).created_at
    with visiting(browser, dsn, java_script_enabled=False, timezone_id=ZONE) as visit:
        page = visit.go(f"/leases/{lease}")
        expect(page.locator("header time").first).to_contain_text(
            re.compile(rf"^{made:%Y-%m-%d %H:%M:%S} UTC, (now|\d+ s ago)")
        )
        expect(page.locator("#zone")).to_have_text("UTC")
        sql.pause_queue("renders")
        visit.go("/events?queue=renders&code=queue_paused")
        assert "Load the page again" in page.content()
        expect(page.locator("#following")).not_to_be_visible()
        expect(page.locator("tbody tr time")).to_contain_text("UTC")
        sql.resume_queue("renders")
        sql.pause_queue("renders")
        page.reload()
        expect(page.locator("tbody tr")).to_have_count(2)


def test_charts_are_in_the_readers_zone(browser: Browser, seeded: str) -> None:
    with visiting(browser, seeded, timezone_id=ZONE) as visit:
        page = visit.go("/queues/renders")
        first = page.locator("#table-ended td time").first
        at = datetime.fromisoformat(str(first.get_attribute("datetime")))
        expect(first).to_have_text(f"{at.astimezone(ZoneInfo(ZONE)):%H:%M}")
