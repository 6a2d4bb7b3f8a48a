"""A run in a real browser: its graph follows it, keys walk it, and it says what it waits for."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

from playwright.sync_api import Page, expect

from hwqueue.client import Client
from hwqueue.types import Gpu, NodeSpec
from tests.dashboard.test_accessible import violations
from tests.dashboard.test_runs import Running
from tests.dashboard.visits import Visit

STEPS: list[dict[str, Any]] = [
    {"name": "fetch", "task": "fetch"},
    {"name": "left", "task": "left", "after": ["fetch"]},
    {"name": "right", "task": "right", "after": ["fetch"]},
    {"name": "train", "task": "train", "after": ["left", "right"],
     "placement": {"resources": {"gpu": 4}}},
]  # fmt: skip


def box(page: Page, step: str, state: str) -> None:
    """The graph must show a step in this state."""
    expect(page.locator(f'#graph a.box.is-{state}[data-step="{step}"]')).to_have_count(1)


def test_a_run_fails_is_retried_and_waits_for_a_gpu(visit: Visit, sql: Client) -> None:
    running = Running(sql, STEPS)
    page = visit.go("/")
    page.get_by_role("link", name="Runs", exact=True).click()
    page.get_by_role("link", name="training").click()
    box(page, "fetch", "pending")
    box(page, "train", "waiting")
    # the graph changes without a reload, and the focus stays
    page.locator('#graph a[data-step="left"]').focus()
    page.evaluate("window.isTheSame = true")
    running.complete("fetch")
    visit.refresh()
    box(page, "fetch", "completed")
    box(page, "left", "pending")
    expect(page.locator('#graph a[data-step="left"]')).to_be_focused()
    assert page.evaluate("window.isTheSame")
    # a step fails, and its run with it
    claims = running.claim()
    right = claims["right"]
    sql.complete_lease(right.lease_id, right.claim_token)
    left = claims["left"]
    error = {"type": "OutOfMemory", "message": "killed"}
    sql.fail_lease(left.lease_id, left.claim_token, error=error, retry=False)
    visit.refresh()
    box(page, "left", "failed")
    box(page, "train", "skipped")
    expect(page.locator("main .say")).to_contain_text("at step left")
    expect(page.locator("main .say")).to_contain_text("OutOfMemory: killed")
    assert violations(page) == []
    # a retry from there says what runs again
    page.get_by_role("link", name="Run again from left").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("2 steps run again")
    expect(dialog.get_by_role("listitem")).to_have_text(["left", "train"])
    expect(dialog.get_by_role("link", name="Keep it as it is")).to_be_focused()
    assert violations(page) == []
    dialog.get_by_role("button", name="Run again").click()
    expect(page.locator(".notice")).to_contain_text("Retried from that step")
    box(page, "right", "completed")
    running.complete("left")
    # no node has four GPUs: the page says so in the words of the lease
    page.reload()
    expect(page.locator("#why .say")).to_contain_text("Waits for step train: no live node")
    box(page, "train", "pending")
    row = page.locator("tr", has=page.locator("#step-of-train"))
    expect(row.locator('[data-l="nodes match"]')).to_have_text("0")
    gpus = [Gpu(resource_id=uuid4()) for _ in range(4)]
    node = uuid4()
    epoch = sql.register_node(node, NodeSpec(name="big-1", instance_id="1", gpus=gpus))
    [claim] = sql.claim_task(["flow"], node, epoch)
    visit.refresh()
    expect(page.locator("main .say")).to_contain_text("Runs train on big-1.")
    sql.complete_lease(claim.lease_id, claim.claim_token)
    visit.refresh()
    expect(page.locator("main .say")).to_contain_text("Completed in")


def test_keys_move_from_step_to_step(visit: Visit, sql: Client) -> None:
    running = Running(sql, STEPS)
    page = visit.go(running.page)
    expect(page.locator("#help")).to_be_visible()  # keys are listened to
    page.locator('#graph a[data-step="fetch"]').focus()
    for key, step in (
        ("ArrowDown", "left"), ("ArrowRight", "right"), ("ArrowRight", "right"),
        ("ArrowDown", "train"), ("ArrowUp", "left"), ("End", "train"), ("Home", "fetch"),
    ):  # fmt: skip
        page.keyboard.press(key)
        expect(page.locator(f'#graph a[data-step="{step}"]')).to_be_focused()
    page.keyboard.press("Enter")
    assert page.url.endswith("#step-1")
    expect(page.locator("tr:target")).to_contain_text("fetch")
    page.keyboard.press("g")
    page.keyboard.press("u")
    expect(page.get_by_role("heading", level=1)).to_have_text("Runs")
