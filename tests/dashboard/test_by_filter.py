"""All leases that a filter means: counted, asked about in words, changed a page at a time."""

from __future__ import annotations

import html
import re
from collections.abc import Callable
from uuid import UUID

import httpx
import pytest
from playwright.sync_api import expect

from hwqueue.client import Client
from hwqueue.dashboard import by_filter
from tests.dashboard.conftest import Pages, serving
from tests.dashboard.visits import Visit

FILM = {"queue": "renders", "label": "film=7"}


@pytest.fixture
def leases(sql: Client, monkeypatch: pytest.MonkeyPatch) -> list[UUID]:
    """Five leases of film 7 and one of film 8; a page changes two."""
    monkeypatch.setattr(by_filter, "PAGE_SIZE", 2)
    for queue in ("renders", "night"):
        sql.create_queue(queue)
    return [sql.spawn_lease("renders", "draw", labels={"film": film}).lease_id for film in "777778"]


def fields_of(page: str) -> dict[str, str]:
    """The hidden fields of a page's form."""
    found = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', page)
    return {name: html.unescape(value) for name, value in found}


async def ask(pages: Pages, verb: str, **filters: str) -> str:
    """The question."""
    return await pages.page(str(httpx.URL(f"/do-all/{verb}", params=filters)))


async def all_pages(pages: Pages, verb: str, fields: dict[str, str]) -> list[str]:
    """Answer the question with yes, and go on as the pages say."""
    told: list[str] = []
    while not told or "cursor" in fields:
        answer = await pages.post(f"/do-all/{verb}", data=fields)
        assert answer.status_code == 200, answer.text
        told.append(answer.text)
        fields = fields_of(answer.text)
    return told


def states(sql: Client, leases: list[UUID]) -> list[str]:
    return [sql.get_lease(lease).state for lease in leases]


async def test_the_question_counts_and_says_the_filter_in_words(
    pages: Pages, sql: Client, leases: list[UUID]
) -> None:
    asked = await ask(pages, "cancel", **FILM, task="draw")
    assert "<strong>5 leases</strong> match now" in asked
    words = "of queue renders, scheduled or pending or claimed, of task draw, with label film=7"
    assert f"<bdi>{words}</bdi>" in asked
    assert "Cancel 5 leases</button>" in asked
    none = await ask(pages, "requeue", **FILM)
    assert "<strong>0 leases</strong>" in none
    assert 'class="danger"' not in none
    assert set(states(sql, leases)) == {"pending"}


async def test_page_by_page(pages: Pages, sql: Client, leases: list[UUID]) -> None:
    asked = await ask(pages, "cancel", **FILM)
    told = await all_pages(pages, "cancel", fields_of(asked) | {"reason": "no film"})
    assert len(told) >= 3
    assert "so far" in told[0]
    assert "5 cancelled, or asked to stop</h1>" in told[-1]
    assert states(sql, leases) == ["cancelled"] * 5 + ["pending"]
    for lease in leases[:5]:
        assert "no film" in str(sql.get_lease(lease).error)
        [event] = sql.list_events(lease_id=lease, code="lease_cancelled")
        assert event.actor == "anonymous"


async def test_each_verb(pages: Pages, sql: Client, leases: list[UUID]) -> None:
    fields = fields_of(await ask(pages, "priority", **FILM))
    await all_pages(pages, "priority", fields | {"priority": "9"})
    assert [sql.get_lease(lease).priority for lease in leases] == [9] * 5 + [0]
    asked = await ask(pages, "move", **FILM)
    assert "<option>night</option>" in asked
    assert "<option>renders</option>" not in asked
    await all_pages(pages, "move", fields_of(asked) | {"to": "night"})
    assert [sql.get_lease(lease).queue for lease in leases] == ["night"] * 5 + ["renders"]
    there = {"queue": "night"}
    await all_pages(pages, "cancel", fields_of(await ask(pages, "cancel", **there)))
    fields = fields_of(await ask(pages, "requeue", **there, state="cancelled"))
    await all_pages(pages, "requeue", fields)
    assert set(states(sql, leases)) == {"pending"}
    await all_pages(pages, "cancel", fields_of(await ask(pages, "cancel", **there)))
    told = await all_pages(pages, "delete", fields_of(await ask(pages, "delete", **there)))
    assert "5 deleted</h1>" in told[-1]
    assert [each.lease_id for each in sql.list_leases()] == leases[5:]


async def test_one_that_cannot_move_is_skipped(pages: Pages, sql: Client) -> None:
    for queue in ("renders", "night"):
        sql.create_queue(queue)
        sql.spawn_lease(queue, "draw", idempotency_key="k")
    fields = fields_of(await ask(pages, "move", queue="renders"))
    [told] = await all_pages(pages, "move", fields | {"to": "night"})
    assert "0 moved" in told
    assert "1 lease skipped: another session held them, or they cannot be in that queue" in told


async def test_the_list_offers_what_fits_its_filter(pages: Pages, leases: list[UUID]) -> None:
    def offered(text: str) -> list[str]:
        return re.findall(r'href="/do-all/(\w+)\?', text)

    assert offered(await pages.page("/leases")) == []  # of one queue only
    every = offered(await pages.page("/leases?queue=renders"))
    assert every == ["cancel", "requeue", "delete", "priority", "move"]
    waiting = await pages.page("/leases?queue=renders&state=pending&label=film%3D7")
    assert offered(waiting) == ["cancel", "priority", "move"]
    assert 'href="/do-all/cancel?state=pending&amp;queue=renders&amp;label=film%3D7"' in waiting
    assert waiting.count('<tr id="lease-') == 5
    assert "No lease fits" in await pages.page("/leases?queue=renders&error=TimeoutError")


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/do-all/cancel", 422, "no queue is named"),
        ("/do-all/cancel?queue=renders&state=failed", 422, "cannot be done to leases"),
        ("/do-all/explode?queue=renders", 404, "There is no page"),
        ("/do-all/cancel?queue=nowhere", 404, "does not exist"),
        ("/do-all/cancel?queue=renders&node=gone", 404, "no node is named"),
        ("/do-all/cancel?queue=renders&label=film", 422, "is not key=value"),
        ("/leases?label=film", 422, "is not key=value"),
    ],
)
async def test_what_cannot_be_asked(
    *, pages: Pages, leases: list[UUID], path: str, status: int, words: str
) -> None:
    assert words in await pages.page(path, status)


@pytest.mark.parametrize(
    ("verb", "change", "words"),
    [
        ("priority", {"priority": "high"}, "must be a whole number"),
        ("priority", {"priority": "40000"}, "priority"),
        ("move", {"to": ""}, "no queue was chosen"),
        ("move", {"to": "nowhere"}, "does not exist"),
        ("cancel", {"cursor": "x"}, "the form is damaged"),
        ("cancel", {"cursor": "{}"}, "cursor does not belong"),
        ("cancel", {"csrf": "x"}, "the form is out of date"),
        ("cancel", {"queue": ""}, "no queue is named"),
    ],
)
async def test_what_cannot_be_done(
    *, pages: Pages, sql: Client, leases: list[UUID], verb: str, change: dict[str, str], words: str
) -> None:
    fields = fields_of(await ask(pages, verb, **FILM))
    answer = await pages.post(f"/do-all/{verb}", data=fields | change)
    assert 400 <= answer.status_code < 500
    assert words in html.unescape(answer.text)
    assert set(states(sql, leases)) == {"pending"}


async def test_who_may_only_look(
    dsn: str, sql: Client, leases: list[UUID], token: Callable[..., str]
) -> None:
    async with serving(dsn, auth="tokens") as pages:
        pages.headers["Authorization"] = f"Bearer {token('viewer')}"
        assert "/do-all/" not in await pages.page("/leases?queue=renders")
        await pages.page("/do-all/cancel?queue=renders", 403)
        answer = await pages.post("/do-all/cancel", data=FILM)
        assert answer.status_code == 403
    assert set(states(sql, leases)) == {"pending"}


def test_in_a_browser_it_goes_on_by_itself(visit: Visit, sql: Client, leases: list[UUID]) -> None:
    page = visit.page
    page.goto(f"{visit.url}/leases?queue=renders&label=film%3D7")
    page.get_by_role("link", name="Cancel all …").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("5 leases match now")
    dialog.get_by_role("button", name="Cancel 5 leases").click()
    expect(dialog).to_contain_text("5 cancelled, or asked to stop")
    dialog.get_by_role("link", name="Back to the list").click()
    expect(page.locator("tbody .chip").first).to_contain_text("cancelled")
    assert states(sql, leases) == ["cancelled"] * 5 + ["pending"]
