"""Events as they come: the stream by itself, and in a real browser."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import httpx
import pytest
from playwright.sync_api import Browser, Route, expect

from hwqueue.client import Client
from hwqueue.dashboard.cookies import SESSION_COOKIE
from hwqueue.dashboard.pages.events import MOST_ROWS
from hwqueue.server.event_streams import BATCH
from tests.dashboard.conftest import csrf
from tests.dashboard.visits import Visit, serving, visiting
from tests.server.test_events import sent_events, streamed


@contextmanager
def following(url: str, cookie: str = "", **options: str) -> Iterator[Iterator[tuple[str, str, str]]]:
    """The stream of the page: of each of its events the id, its kind and the data."""
    with streamed(f"{url}/events/stream", params=options, headers={"Cookie": cookie}) as lines:
        told = sent_events(lines)
        yield ((each.get("id", ""), each["event"], each.get("data", "")) for each in told)


def test_a_row_comes_as_the_page_has_it(dsn: str, sql: Client) -> None:
    sql.create_queue("renders")
    with serving(dsn) as url:
        page = httpx.get(f"{url}/events").text
        cursor = page.partition('data-cursor="')[2].partition('"')[0]
        with following(url, after=cursor, code="queue_paused") as events:
            assert next(events)[1] == "here"
            sql.pause_queue("renders")
            sql.resume_queue("renders")
            sql.pause_queue("renders")
            told = [next(events), next(events)]
        assert all(kind == "row" and "queue_paused" in row for _, kind, row in told)
        page = httpx.get(f"{url}/events").text
        assert all(f'id="event-{number}"' in row for number, _, row in told)
        assert all(f'id="event-{number}"' in page for number, _, _ in told)
        # from the last one on, nothing is missed and nothing comes twice
        with following(url, after=told[0][0]) as events:
            assert [next(events)[0] for _ in range(3)][2] == told[1][0]


def test_who_was_away_for_long_is_told_to_look_at_the_page(dsn: str, sql: Client) -> None:
    sql.create_queue("renders")
    for _ in range(BATCH // 2):
        sql.pause_queue("renders")
        sql.resume_queue("renders")
    with serving(dsn) as url, following(url, after="0") as events:
        assert [kind for _, kind, _ in events] == ["gap"]


def signed_in(url: str, secret: str) -> str:
    """The cookies of a browser that has signed in with a token."""
    with httpx.Client(base_url=url) as window:
        form = csrf(window.get("/").text)
        window.post("/sign-in", data={"csrf": form, "token": secret})
        assert SESSION_COOKIE in window.cookies
        return "; ".join(f"{name}={value}" for name, value in window.cookies.items())


def test_a_stream_ends_with_the_session(dsn: str, sql: Client, token: Callable[..., str]) -> None:
    sql.create_queue("renders")
    with serving(dsn, auth="tokens", token_cache=timedelta(0)) as url:
        cookie = signed_in(url, token("viewer"))
        assert httpx.get(f"{url}/events/stream", params={"after": "0"}).status_code == 401
        with following(url, after="0", cookie=cookie) as events:
            assert next(events)[1] == "here"
            [grant] = sql.list_tokens()
            sql.revoke_token(grant.name)
            for _ in range(2):  # the first may have been under way
                sql.pause_queue("renders")
                told_last = [kind for _, kind, _ in events]
            assert told_last == []


def test_events_come_by_themselves(visit: Visit, sql: Client) -> None:
    page = visit.go("/events?queue=renders")
    state = page.locator("#follow-state")
    expect(state).to_have_text("connected")
    expect(page.locator("main")).to_contain_text("No event fits this filter")
    sql.create_queue("renders")
    sql.pause_queue("renders")
    row = page.get_by_role("row", name=re.compile("queue_paused"))
    expect(row).to_be_visible()
    expect(row.locator("time")).to_contain_text(re.compile("ago|now"))
    expect(page.locator("main")).not_to_contain_text("No event fits this filter")
    # paused: nothing comes, and nothing is missed
    page.keyboard.press("p")
    expect(state).to_have_text("paused")
    sql.resume_queue("renders")
    with pytest.raises(AssertionError):
        expect(page.locator("tbody tr")).to_have_count(3, timeout=2500)
    page.get_by_role("button", name="Go on").click()
    expect(page.locator("tbody tr")).to_have_count(3)
    expect(page.locator("tbody tr").first).to_contain_text("queue_resumed")
    expect(state).to_have_text("connected")
    # a narrower filter follows, too
    page.get_by_role("link", name="queue_paused").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(state).to_have_text("connected")
    sql.pause_queue("renders")
    sql.resume_queue("renders")
    expect(page.locator("tbody tr")).to_have_count(2)


def test_rows_wait_while_somebody_reads(visit: Visit, sql: Client) -> None:
    sql.create_queue("renders")
    # a banner that comes would push the row from under the mouse
    visit.page.route("**/standing*", lambda route: route.fulfill(status=204))
    page = visit.go("/events?queue=renders")
    expect(page.locator("#follow-state")).to_have_text("connected")
    page.locator("tbody tr").hover()
    sql.pause_queue("renders")
    new = page.get_by_role("button", name="1 new")
    expect(new).to_be_visible()
    expect(page.locator("tbody tr")).to_have_count(1)
    new.click()
    expect(page.locator("tbody tr")).to_have_count(2)
    expect(new).not_to_be_visible()
    # only so many stay
    page.mouse.move(0, 0)
    for _ in range(MOST_ROWS // 2):
        sql.pause_queue("renders")
        sql.resume_queue("renders")
    expect(page.locator("tbody tr").first).to_contain_text("queue_resumed")
    expect(page.locator("tbody tr")).to_have_count(MOST_ROWS)
    expect(page.locator("tbody tr").last).not_to_contain_text("queue_created")


def test_a_hidden_tab_has_no_stream_and_a_lost_one_is_found_again(
    browser: Browser, dsn: str, sql: Client
) -> None:
    sql.create_queue("renders")
    with visiting(browser, dsn) as visit:
        page = visit.page
        asked: list[str] = []

        def streams() -> int:
            return sum("/events/stream" in url for url in asked)

        page.on("request", lambda one: asked.append(one.url))
        visit.go("/events?queue=renders")
        state = page.locator("#follow-state")
        expect(state).to_have_text("connected")
        hide = "document.dispatchEvent(new Event('visibilitychange'))"
        page.evaluate("Object.defineProperty(document, 'hidden', {value: true, writable: true})")
        page.evaluate(hide)
        expect(state).to_have_text("connecting")
        sql.pause_queue("renders")
        with pytest.raises(AssertionError):
            expect(page.locator("tbody tr")).to_have_count(2, timeout=2500)
        assert streams() == 1
        # refused when it comes back, and tried again
        refused: list[int] = []

        def refuse_once(route: Route) -> None:
            if refused:
                route.continue_()
            else:
                refused.append(1)
                route.fulfill(status=503)

        page.route("**/events/stream*", refuse_once)
        page.evaluate("document.hidden = false")
        page.evaluate(hide)
        expect(state).to_have_text("reconnecting")
        expect(state).to_have_text("connected")
        expect(page.locator("tbody tr")).to_have_count(2)
        page.unroute("**/events/stream*")
        visit.complaints.clear()  # the browser's own about the 503
        assert streams() == 3
