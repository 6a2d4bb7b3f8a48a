"""Several leases at a time: those that a filter means, or that were chosen; asked about first."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from uuid import UUID, uuid4

import httpx
import psycopg
import pytest
from playwright.sync_api import expect

from hwqueue.client import Client
from hwqueue.dashboard import by_filter
from hwqueue.types import LeaseState, NodeSpec
from tests.dashboard.conftest import Pages, csrf, states
from tests.dashboard.visits import Visit

FILM = {"queue": "renders", "label": "film=7"}


@pytest.fixture
def films(sql: Client, monkeypatch: pytest.MonkeyPatch) -> list[UUID]:
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


async def test_the_question_counts_and_says_the_filter_in_words(
    pages: Pages, sql: Client, films: list[UUID]
) -> None:
    asked = await ask(pages, "cancel", **FILM, task="draw")
    assert "<strong>5 leases</strong> match now" in asked
    words = "of queue renders, scheduled or pending or claimed, of task draw, with label film=7"
    assert f"<bdi>{words}</bdi>" in asked
    assert "Cancel 5 leases</button>" in asked
    none = await ask(pages, "requeue", **FILM)
    assert "<strong>0 leases</strong>" in none
    assert 'class="danger"' not in none
    assert set(states(sql, films)) == {"pending"}


async def test_page_by_page(pages: Pages, sql: Client, films: list[UUID]) -> None:
    asked = await ask(pages, "cancel", **FILM)
    told = await all_pages(pages, "cancel", fields_of(asked) | {"reason": "no film"})
    assert len(told) >= 3
    assert "so far" in told[0]
    assert "5 cancelled, or asked to stop</h1>" in told[-1]
    assert states(sql, films) == ["cancelled"] * 5 + ["pending"]
    for lease in films[:5]:
        assert "no film" in str(sql.get_lease(lease).error)
        [event] = sql.list_events(lease_id=lease, code="lease_cancelled")
        assert event.actor == "anonymous"


async def test_each_verb(pages: Pages, sql: Client, films: list[UUID]) -> None:
    fields = fields_of(await ask(pages, "priority", **FILM))
    await all_pages(pages, "priority", fields | {"priority": "9"})
    assert [sql.get_lease(lease).priority for lease in films] == [9] * 5 + [0]
    asked = await ask(pages, "move", **FILM)
    assert "<option>night</option>" in asked
    assert "<option>renders</option>" not in asked
    await all_pages(pages, "move", fields_of(asked) | {"to": "night"})
    assert [sql.get_lease(lease).queue for lease in films] == ["night"] * 5 + ["renders"]
    there = {"queue": "night"}
    await all_pages(pages, "cancel", fields_of(await ask(pages, "cancel", **there)))
    fields = fields_of(await ask(pages, "requeue", **there, state="cancelled"))
    await all_pages(pages, "requeue", fields)
    assert set(states(sql, films)) == {"pending"}
    await all_pages(pages, "cancel", fields_of(await ask(pages, "cancel", **there)))
    told = await all_pages(pages, "delete", fields_of(await ask(pages, "delete", **there)))
    assert "5 deleted</h1>" in told[-1]
    assert [each.lease_id for each in sql.list_leases()] == films[5:]


@pytest.fixture
def leases(sql: Client) -> list[UUID]:
    """Four leases: one that has completed, one that runs, two that wait."""
    sql.create_queue("renders")
    node = uuid4()
    epoch = sql.register_node(node, NodeSpec(name="n-1", instance_id="1"))
    made = [sql.spawn_lease("renders", "draw").lease_id for _ in range(4)]
    first, _ = sql.claim_task(["renders"], node, epoch, qty=2)
    sql.complete_lease(first.lease_id, first.claim_token)
    return sorted(made, key=lambda each: sql.get_lease(each).state)


async def post(pages: Pages, verb: str, leases: Sequence[object], **more: str) -> httpx.Response:
    """Send the list's form, as the buttons above it do."""
    page = await pages.page("/leases")
    fields = {"csrf": csrf(page), "back": "/leases?queue=renders", "lease": [str(x) for x in leases]}
    return await pages.post(f"/do-many/{verb}", data=fields | more)


async def test_it_asks_first_and_says_what_will_happen(pages: Pages, sql: Client, leases: list[UUID]) -> None:
    before = states(sql, leases)
    asked = await post(pages, "cancel", [*leases, uuid4()])
    assert asked.status_code == 200
    assert "Cancel 5 leases?" in asked.text
    effects = re.findall(r"<li><strong>(\d)</strong> <span>([^<]+)", asked.text)
    assert [(count, words[:16]) for count, words in effects] == [
        ("2", "will not run; ca"),
        ("1", "run now: their w"),
        ("1", "will refuse, and"),
        ("1", "are not there an"),
    ]
    assert "1 completed" in asked.text
    assert 'href="/leases?queue=renders"' in asked.text
    assert states(sql, leases) == before


async def test_one_that_refuses_does_not_keep_back_the_others(
    pages: Pages, sql: Client, leases: list[UUID]
) -> None:
    told = await post(pages, "cancel", leases, sure="yes", reason="the wrong film")
    assert "3 of 4 leases cancelled, or asked to stop" in told.text
    assert "is completed already" in told.text
    assert "asked to stop" in told.text
    now = states(sql, leases)
    assert sorted(now) == ["cancelled", "cancelled", "claimed", "completed"]
    assert sql.get_lease(leases[now.index("claimed")]).stop_reason == "cancelled"
    for lease in leases:
        if sql.get_lease(lease).state == LeaseState.CANCELLED:
            assert "the wrong film" in str(sql.get_lease(lease).error)
            [event, *_] = sql.list_events(lease_id=lease, code="lease_cancelled")
            assert event.actor == "anonymous"
    told = await post(pages, "requeue", leases, sure="yes")
    assert "2 of 4 leases requeued" in told.text
    assert sorted(states(sql, leases)) == ["claimed", "completed", "pending", "pending"]


async def test_the_database_goes_away_in_the_middle(
    pages: Pages, sql: Client, leases: list[UUID], monkeypatch: pytest.MonkeyPatch
) -> None:
    from hwqueue.dashboard import chosen  # noqa: PLC0415

    tried = []

    async def cancel(*_: object) -> LeaseState:
        tried.append(1)
        if len(tried) == 2:
            raise psycopg.OperationalError("gone")
        return LeaseState.CANCELLED

    action = chosen.ACTIONS["cancel"]
    replaced = chosen.ChosenAction(action.name, action.effects, cancel, action.done)
    monkeypatch.setattr(chosen, "ACTIONS", {"cancel": replaced})
    told = await post(pages, "cancel", leases, sure="yes")
    assert "1 of 4 leases" in told.text
    assert told.text.count("may have been done, or not") == 1
    assert told.text.count("not tried any more") == 2
    assert len(tried) == 2


def test_choose_some_and_cancel_them(visit: Visit, sql: Client, leases: list[UUID]) -> None:
    page = visit.go("/leases")
    cancel = page.get_by_role("button", name="Cancel …")
    expect(cancel).to_be_disabled()
    page.get_by_label("all of this page").check()
    expect(page.locator("#chosen")).to_have_text("4 chosen")
    # nothing moves while somebody chooses
    expect(page.locator("#live")).to_have_text("held")
    page.keyboard.press("j")
    page.keyboard.press("x")
    expect(page.locator("#chosen")).to_have_text("3 chosen")
    page.keyboard.press("x")
    cancel.click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Cancel 4 leases?")
    expect(dialog).to_contain_text("noted as done by anonymous")
    expect(dialog.get_by_role("link", name="Keep them as they are")).to_be_focused()
    page.keyboard.press("Enter")
    expect(dialog).not_to_be_visible()
    assert "cancelled" not in states(sql, leases)
    expect(page.locator("#chosen")).to_have_text("4 chosen")
    cancel.click()
    dialog.get_by_label("Reason").fill("the wrong film")
    dialog.get_by_role("button", name="Cancel 4 leases").click()
    expect(dialog).to_contain_text("3 of 4 leases cancelled, or asked to stop")
    expect(dialog).to_contain_text("is completed already")
    dialog.get_by_role("link", name="Back to the list").click()
    expect(dialog).not_to_be_visible()
    # one stays on the page, which shows what is so now
    expect(page.get_by_role("row", name=re.compile("cancelled"))).to_have_count(3)
    expect(page.locator("#chosen")).to_have_text("0 chosen")
    expect(page.locator("#live")).to_have_text("live")


def test_in_a_browser_it_goes_on_by_itself(visit: Visit, sql: Client, films: list[UUID]) -> None:
    page = visit.page
    page.goto(f"{visit.url}/leases?queue=renders&label=film%3D7")
    page.get_by_role("link", name="Cancel all …").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("5 leases match now")
    dialog.get_by_role("button", name="Cancel 5 leases").click()
    expect(dialog).to_contain_text("5 cancelled, or asked to stop")
    dialog.get_by_role("link", name="Back to the list").click()
    expect(page.locator("tbody .chip").first).to_contain_text("cancelled")
    assert states(sql, films) == ["cancelled"] * 5 + ["pending"]
