"""Every page as axe-core judges it, light and dark, wide and narrow; dialogs and errors, too.

Each fits the window and asks nothing of another host.
"""

from __future__ import annotations

from typing import Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from hwqueue.client import Client
from tests.dashboard.screenshots import SIZES
from tests.dashboard.screenshots import pages as every_page
from tests.dashboard.visits import Visit, serving, visiting

RULES = {
    "runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"],
    "resultTypes": ["violations"],
}


def violations(page: Page) -> list[str]:
    """What axe-core finds wrong: the rule, and each element with what is the matter."""
    return [
        f"{found['id']}: {node['target']}: {node['failureSummary']}"
        for found in Axe().run(page, options=RULES).response["violations"]
        for node in found["nodes"]
    ]


@pytest.mark.parametrize(
    ("size", "scheme"),
    [
        ("wide", "light"),
        ("narrow", "dark"),
        pytest.param("wide", "dark", marks=pytest.mark.slow),
        pytest.param("narrow", "light", marks=pytest.mark.slow),
    ],
)
def test_every_page_is_open_to_all_fits_and_keeps_to_the_host(
    browser: Browser, seeded: str, size: str, scheme: str
) -> None:
    with Client(seeded, pool_size=1) as client:
        found = every_page(client)
        lease = client.list_leases(state="pending", limit=1)[0].lease_id
        member = client.get_gang(found["gang"].removeprefix("/gangs/")).members[0].lease_id
    width, height = SIZES[size]
    found |= {
        "question": f"/do/cancel?lease={lease}",
        "member": f"/leases/{member}",
        "signal": f"/do/send-signal?step={found['run-kinds'].removeprefix('/runs/')}:approve",
        "mistake": "/try?cores=many",
        "mistake in JSON": "/try/placement?placement={",
        "nothing": "/leases?task=nobody",
        "not there": "/leases/x",
    }
    refusals = {"mistake", "mistake in JSON", "not there"}
    with visiting(
        browser,
        seeded,
        viewport={"width": width, "height": height},
        color_scheme="dark" if scheme == "dark" else "light",
        reduced_motion="reduce",
    ) as visit:
        wrong: list[str] = []
        for name, path in found.items():
            page = visit.go(path)
            expect(page.locator("#why a[href$='/why']")).to_have_count(0)  # has looked at the fleet
            expect(page.locator("#where a[href*='/where']")).to_have_count(0)
            page.wait_for_load_state("networkidle")
            wrong += [f"{name}: {told}" for told in violations(page)]
            wide, room = page.evaluate(
                "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
            )
            assert wide <= room, name
            unnamed = page.evaluate(
                "[...document.querySelectorAll('a, button')].filter((each) =>"
                " each.checkVisibility() && !each.textContent.trim()"
                " && !each.ariaLabel).map((each) => each.outerHTML)"
            )
            assert unnamed == [], name
            if name in refusals:  # the browser's own about the status
                visit.complaints = [told for told in visit.complaints if "status of 4" not in told]
            assert visit.complaints == [], name
        assert "\n".join(wrong) == ""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_dialogs_and_the_way_in(browser: Browser, seeded: str, scheme: str) -> None:
    dark: Literal["dark", "light"] = "dark" if scheme == "dark" else "light"
    with visiting(browser, seeded, color_scheme=dark) as visit:
        page = visit.go("/leases?state=pending")
        page.get_by_label("all of this page").check()
        assert violations(page) == []
        page.get_by_role("button", name="Cancel …").click()
        expect(page.get_by_role("dialog")).to_be_visible()
        assert violations(page) == []
        page.keyboard.press("Escape")
        expect(page.get_by_role("dialog")).to_have_count(0)  # an open one takes the next key
        page.keyboard.press("?")
        expect(page.get_by_role("dialog")).to_be_visible()
        assert violations(page) == []
    with serving(seeded, auth="tokens") as url, browser.new_context(color_scheme=dark) as context:
        visit = Visit(context, context.new_page(), url)
        page = visit.go("/")
        expect(page.get_by_label("Token of the API")).to_be_visible()
        assert violations(page) == []
