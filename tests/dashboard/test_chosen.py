"""Several leases at a time: asked first, each for itself, and what became of each is said."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from uuid import UUID, uuid4

import httpx
import psycopg
import pytest
from playwright.sync_api import expect

from hwqueue.client import Client
from hwqueue.types import LeaseState, NodeSpec
from tests.dashboard.conftest import Pages, serving
from tests.dashboard.visits import Visit


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
    token = page.partition('name="csrf" value="')[2].partition('"')[0]
    fields = {"csrf": token, "back": "/leases?queue=renders", "lease": [str(x) for x in leases]}
    return await pages.post(f"/do-many/{verb}", data=fields | more)


def states(sql: Client, leases: Sequence[UUID]) -> list[str]:
    """What each of them is now."""
    return [sql.get_lease(each).state for each in leases]


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


@pytest.mark.parametrize(
    ("verb", "leases", "status", "words"),
    [
        ("cancel", [], 422, "no lease was chosen"),
        ("cancel", ["x"], 404, "is no lease id"),
        ("cancel", [uuid4() for _ in range(201)], 422, "more than 200"),
        ("explode", [uuid4()], 404, "There is no page"),
    ],
)
async def test_what_cannot_be_asked(
    *, pages: Pages, sql: Client, verb: str, leases: list[object], status: int, words: str
) -> None:
    sql.create_queue("renders")
    sql.spawn_lease("renders", "draw")
    answer = await post(pages, verb, leases)
    assert answer.status_code == status
    assert words in answer.text


async def test_nobody_else_may(dsn: str, sql: Client, leases: list[UUID], token: Callable[..., str]) -> None:
    async with serving(dsn, auth="tokens") as pages:
        pages.headers["Authorization"] = f"Bearer {token('viewer')}"
        page = await pages.page("/leases")
        assert "do-many" not in page
        assert 'type="checkbox" form' not in page
        fields = {"lease": str(leases[0]), "sure": "yes"}
        assert (await pages.post("/do-many/cancel", data=fields)).status_code == 403
        pages.headers["Authorization"] = f"Bearer {token('operator')}"
        forged: list[dict[str, str]] = [{}, {"csrf": "x"}, {"csrf": "é"}]
        for wrong in forged:
            answer = await pages.post("/do-many/cancel", data=fields | wrong)
            assert answer.status_code == 403
        token_of_form = (await pages.page("/leases")).partition('name="csrf" value="')[2]
        good = fields | {"csrf": token_of_form.partition('"')[0]}
        away = {"Sec-Fetch-Site": "cross-site"}
        assert (await pages.post("/do-many/cancel", data=good, headers=away)).status_code == 403
        assert "cancelled" not in states(sql, leases)
        assert (await pages.post("/do-many/cancel", data=good)).status_code == 200


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
