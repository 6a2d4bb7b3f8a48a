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
     "affinity_tags": {"nvlink": "full"}},
]  # fmt: skip


def box(page: Page, step: str, state: str) -> None:
    """The graph must show a step in this state."""
    expect(page.locator(f'#graph a.box.is-{state}[data-step="{step}"]')).to_have_count(1)


def gpu_node(name: str, *, gpus: int, **labels: str) -> NodeSpec:
    return NodeSpec(
        name=name,
        instance_id="1",
        labels={"zone": "west", **labels},
        gpus=[Gpu(resource_id=uuid4()) for _ in range(gpus)],
    )


def stay(page: Page) -> None:
    """Mark the page, to see later whether it was loaded again."""
    page.evaluate("window.isTheSame = true")


def stayed(page: Page) -> bool:
    """Whether it is the page that was marked."""
    return bool(page.evaluate("window.isTheSame === true"))


def test_a_run_fails_is_retried_and_waits_for_a_gpu(visit: Visit, sql: Client) -> None:
    """The story of a run, on one page that is never loaded again after the retry."""
    sql.set_task("train", defaults={"placement": {"resources": {"gpu": 4}}})
    running = Running(sql, STEPS, steps={"train": {"affinity_tags": {"zone": "west"}}})
    sql.register_node(uuid4(), gpu_node("west-1", gpus=1))
    page = visit.go("/")
    page.get_by_role("link", name="Runs", exact=True).click()
    page.get_by_role("link", name="training").click()
    box(page, "fetch", "pending")
    box(page, "train", "waiting")
    stay(page)
    page.locator('#graph a[data-step="left"]').focus()
    running.complete("fetch")
    visit.refresh()
    box(page, "fetch", "completed")
    box(page, "left", "pending")
    expect(page.locator('#graph a[data-step="left"]')).to_be_focused()
    _fails(visit, running)
    _is_retried(visit, running)
    _waits(visit, running)
    # a node that has all of it
    node = uuid4()
    epoch = sql.register_node(node, gpu_node("west-2", gpus=4, nvlink="full"))
    [claim] = sql.claim_task(["flow"], node, epoch)
    visit.refresh()
    expect(page.locator("main .say")).to_contain_text("Runs train on west-2.")
    box(page, "train", "running")
    sql.complete_lease(claim.lease_id, claim.claim_token)
    visit.refresh()
    expect(page.locator("main .say")).to_contain_text("Completed in")
    box(page, "train", "completed")
    assert stayed(page)


def _fails(visit: Visit, running: Running) -> None:
    """A step fails, and its run with it."""
    page, sql = visit.page, running.sql
    claims = running.claim()
    visit.refresh()
    box(page, "left", "running")
    box(page, "right", "running")
    expect(page.locator("main .say")).to_contain_text("Runs left on n-1, right on n-1.")
    right, left = claims["right"], claims["left"]
    sql.complete_lease(right.lease_id, right.claim_token)
    error = {"type": "OutOfMemory", "message": "killed"}
    sql.fail_lease(left.lease_id, left.claim_token, error=error, retry=False)
    visit.refresh()
    box(page, "right", "completed")
    box(page, "left", "failed")
    box(page, "train", "skipped")
    expect(page.locator("main .say")).to_contain_text("at step left")
    expect(page.locator("main .say")).to_contain_text("OutOfMemory: killed")
    assert stayed(page)
    assert violations(page) == []


def _is_retried(visit: Visit, running: Running) -> None:
    """A retry from there says what runs again, and what has completed stays."""
    page = visit.page
    page.get_by_role("link", name="Run again from left").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("2 steps run again")
    expect(dialog.get_by_role("listitem")).to_have_text(["left", "train"])
    expect(dialog.get_by_role("link", name="Keep it as it is")).to_be_focused()
    assert violations(page) == []
    dialog.get_by_role("button", name="Run again").click()
    expect(page.locator(".notice")).to_contain_text("Retried from that step")
    assert "done=" not in page.url
    box(page, "right", "completed")
    box(page, "left", "pending")
    box(page, "train", "waiting")
    stay(page)
    running.complete("left")
    visit.refresh()
    box(page, "train", "pending")


def _waits(visit: Visit, running: Running) -> None:
    """The page says why: which node lacks what, and which level asks for it."""
    page = visit.page
    why = page.locator("#why")
    expect(why.locator(".say")).to_contain_text("Waits for step train: none of the 2 live")
    for asks in ("nvlink in full by step", "zone in west by submission", "4 GPU by task"):
        expect(why).to_contain_text(asks)
    row = page.locator("tr", has=page.locator("#step-of-train"))
    expect(row.locator(".part")).to_have_text(
        ["nvlink in full by step", "zone in west by submission", "4 GPU by task"]
    )
    nearest = why.get_by_role("list", name="Nearest nodes").get_by_role("listitem")
    expect(nearest).to_have_count(2)
    expect(nearest.filter(has_text="west-1")).to_contain_text("lacks nvlink in full")
    expect(nearest.filter(has_text="n-1")).to_contain_text("zone in west")
    expect(row.locator('[data-l="nodes match"]')).to_have_text("0")
    assert violations(page) == []


def test_four_steps_side_by_side_fit(visit: Visit, sql: Client) -> None:
    others = [{"name": f"s{no}", "task": "t", "after": ["fetch"]} for no in range(4)]
    page = visit.go(Running(sql, [STEPS[0], *others]).page)
    page.set_viewport_size({"width": 1440, "height": 900})
    assert page.locator(".graph").evaluate("it => it.scrollWidth - it.clientWidth") == 0


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
