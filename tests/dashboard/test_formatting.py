"""How settings, errors and times are written; what is vendored is what it was."""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID
from zoneinfo import ZoneInfo

from playwright.sync_api import Browser, expect

from hwqueue.client import Client
from hwqueue.dashboard import formatting
from tests.dashboard.visits import visiting


def test_secrets_are_not_shown() -> None:
    text = formatting.pretty({"api_key": "abc", "list": [{"Password": "def"}], "number": 2**62 + 1})
    assert "abc" not in text
    assert "def" not in text
    assert str(2**62 + 1) in text


def test_what_is_counted_in_part_says_so() -> None:
    assert [formatting.parked(n, 1960) for n in (1960, 1961)] == ["1,960", "more than 1,960"]


def test_a_cell_has_the_core_of_a_reason() -> None:
    many = "3 nodes match, none is free: " + ", ".join(f"node-{number}" for number in range(30))
    assert formatting.core("most lack zone in z5") == "most lack zone in z5"
    assert (
        formatting.core("no node is live (3 silent); back again, none could") == "no node is live (3 silent)"
    )
    assert len(formatting.core(many)) <= 92
    assert re.search(r"node-\d+ …$", formatting.core(many))


def test_the_vendored_files_are_what_the_manifest_says() -> None:
    script = Path(__file__).parents[2] / "tools" / "vendor_static.py"
    subprocess.run([sys.executable, str(script)], check=True)


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
        page.wait_for_load_state("networkidle")  # so do the tabs
        page.clock.fast_forward(10 * 60_000)
        expect(when).to_have_text("10 min ago")
        visit.go("/queues?live=off")
        oldest = page.locator("time[data-age] .rel")
        expect(oldest).to_have_text(re.compile(r"^\d+ s$"))
        page.wait_for_load_state("networkidle")
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
