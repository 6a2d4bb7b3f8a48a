"""The real pages in a real browser against a real database: what somebody on call does."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect

from hwqueue.client import Client
from hwqueue.types import Gpu, NodeSpec
from tests.dashboard.conftest import granted
from tests.dashboard.test_accessible import violations
from tests.dashboard.test_runs import Running
from tests.dashboard.visits import Visit, serving, visiting

# What is wrong in a picture: boxes on each other or outside, lines that do not lead down or run over boxes.
WRONG_IN_GRAPH = """() => {
  const svg = document.querySelector("#graph"), frame = svg.getBoundingClientRect(), wrong = [];
  const boxes = new Map([...svg.querySelectorAll("a.box")].map((box) => {
    const { left, right, top, bottom } = box.querySelector(".frame").getBoundingClientRect();
    return [box.dataset.step, { left, right, top, bottom }];
  }));
  const holds = (box, x, y) => x > box.left && x < box.right && y > box.top && y < box.bottom;
  const near = (one, other) => Math.abs(one - other) < 1;
  for (const [name, box] of boxes) {
    if (box.left < frame.left || box.right > frame.right || box.bottom > frame.bottom) wrong.push(name);
    for (const [other, { left, right, top, bottom }] of boxes) {
      if (other !== name && left < box.right && right > box.left && top < box.bottom && bottom > box.top) {
        wrong.push(`${name} is on ${other}`);
      }
    }
  }
  for (const edge of svg.querySelectorAll(".edge")) {
    const [line, tip] = edge.children, source = boxes.get(edge.dataset.from), target = boxes.get(edge.dataset.to);
    const points = Array.from({ length: line.getTotalLength() / 4 }, (_, at) => line.getPointAtLength(4 * at));
    const end = tip.getBoundingClientRect(), middle = (end.left + end.right) / 2;
    if (!near(points[0].y + frame.top, source.bottom)) wrong.push(`begin of ${edge.id}`);
    if (!near(end.bottom, target.top) || !near(middle, (target.left + target.right) / 2)) wrong.push(`end of ${edge.id}`);
    for (const { x, y } of points) {
      for (const [name, box] of boxes) if (holds(box, x + frame.left, y + frame.top)) wrong.push(`${edge.id} is on ${name}`);
    }
  }
  return wrong;
}"""  # noqa: E501
H100 = {"require": [{"label": "gpu_model", "op": "in", "values": ["H100"]}]}


def test_why_is_it_pending_add_a_node_watch_it_go(visit: Visit, sql: Client) -> None:
    sql.create_queue("training")
    other = uuid4()
    labels = {"gpu_model": "T4"}
    sql.register_node(other, NodeSpec(name="old-1", instance_id="1", labels=labels))
    lease = sql.spawn_lease("training", "train", placement=H100).lease_id
    page = visit.go("/")
    # the first page says that something needs somebody, and leads there
    page.get_by_role("link", name="1 lease cannot run anywhere").click()
    page.get_by_role("link", name="gpu_model in H100").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("gpu_model in H100")
    expect(page.locator(".say")).to_contain_text("No live node can run it")
    expect(page.locator("tr[id^=near-]", has_text="old-1")).to_contain_text('has "T4"')
    expect(page.locator("section", has_text="What would help")).to_contain_text("add a node")
    # its lease says the same, after it has looked at the fleet
    page.get_by_role("link", name=f"…{str(lease)[-8:]}").click()
    expect(page.locator("#why .say")).to_contain_text("No live node can run it")
    # a node comes that has what it asks, and takes it
    claim = granted(sql, "training", name="new-1", labels={"gpu_model": "H100"})
    visit.refresh()
    expect(page.locator("main .say")).to_contain_text("Runs on new-1")
    sql.complete_lease(lease, claim.claim_token)
    visit.refresh()
    expect(page.locator("main .say")).to_contain_text("Completed")


def test_an_open_page_says_since_when_the_database_is_away(visit: Visit, lease: UUID) -> None:
    page = visit.go(f"/leases/{lease}")
    banner, cancel = page.locator("#away"), page.get_by_role("link", name="Cancel", exact=True)
    expect(banner).not_to_be_visible()
    page.route("**/leases/*", lambda route: route.fulfill(status=503, body="away"))
    page.route("**/leases/*/why", answer_after(banner, '<p id="why-body">no longer true</p>'))
    page.keyboard.press("r")
    expect(page.locator("#why")).to_have_text("no longer true")
    # the page is as old as its own answer, whichever of its parts answered last
    expect(banner).to_contain_text(re.compile(r"No answer since .*\d\d:\d\d:\d\d .*(now|ago)"))
    expect(cancel).to_have_attribute("aria-disabled", "true")
    cancel.click(force=True)
    expect(page.locator("#said")).to_contain_text("nothing can be changed until it is back")
    expect(page.get_by_role("dialog")).not_to_be_visible()
    page.unroute_all()
    visit.refresh()
    expect(banner).not_to_be_visible()
    cancel.click()
    expect(page.get_by_role("dialog")).to_contain_text("Cancel this lease of task draw?")
    visit.complaints.clear()  # the browser's own about the 503


def answer_after(shown: Locator, body: str) -> Callable[[Route], None]:
    """Answers a request once this is to be seen."""

    def answer(route: Route) -> None:
        expect(shown).to_be_visible()
        route.fulfill(body=body, content_type="text/html")

    return answer


def test_a_refresh_keeps_what_is_open_and_where_one_is(visit: Visit, sql: Client) -> None:
    sql.create_queue("renders")
    visit.page.clock.install()
    page = visit.go("/queues/renders")
    summary = page.locator("#table-ended summary")
    summary.click()
    expect(page.locator("#table-ended table")).to_be_visible()
    summary.focus()
    sql.spawn_lease("renders", "draw")
    # pausing means all of it
    page.keyboard.press("p")
    expect(page.locator("#live")).to_have_text("paused")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.clock.fast_forward(60_000)
    expect(page.locator(".card", has_text="Pending")).to_contain_text("0")
    assert asked == []
    page.keyboard.press("p")
    expect(page.locator(".card", has_text="Pending")).to_contain_text("1")
    expect(page.locator("#table-ended table")).to_be_visible()
    expect(summary).to_be_focused()
    expect(page.locator("#plot-ended canvas")).to_be_visible()


def test_without_a_mouse(visit: Visit, sql: Client) -> None:
    sql.create_queue("renders")
    node = uuid4()
    sql.register_node(node, NodeSpec(name="n-1", instance_id="1", rack=1))
    sql.register_node(uuid4(), NodeSpec(name="n-2", instance_id="1", rack=1))
    page = visit.go("/")
    page.keyboard.press("g")
    page.keyboard.press("q")
    expect(page).to_have_url(re.compile("/queues$"))
    expect(page.locator("#help")).to_be_visible()  # keys are listened to
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/queues/renders$"))
    expect(page.locator("#help")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page).to_have_url(re.compile("/queues$"))
    expect(page.locator("#help")).to_be_visible()
    page.keyboard.press("/")
    page.keyboard.type("n-2")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/nodes/n-2$"))
    expect(page.locator("#help")).to_be_visible()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("jump to a lease")
    page.keyboard.press("Escape")
    # the map, by its keys
    visit.go("/fleet?view=map")
    canvas = page.locator("#map canvas")
    expect(canvas).to_have_attribute("data-nodes", "2")
    canvas.focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#said")).to_contain_text("n-2, rack 1, live")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("/nodes/n-2$"))


@pytest.mark.parametrize("secure", [False, True])
def test_a_browser_keeps_a_session_until_it_signs_out(
    browser: Browser, dsn: str, sql: Client, token: Callable[..., str], secure: bool
) -> None:
    """Browsers take this machine for safe, and keep secure cookies without https, too."""
    sql.create_queue("renders")
    secret = token("operator")
    with serving(dsn, auth="tokens", secure_cookies=secure) as url, browser.new_context() as window:
        page = window.new_page()
        page.goto(f"{url}/queues/renders")
        page.get_by_label("Token of the API").fill(secret)
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("heading", name="renders")).to_be_visible()
        kept = {cookie["name"]: cookie for cookie in window.cookies()}
        prefix = "__Host-" if secure else ""
        assert set(kept) == {f"{prefix}hwqueue-session", f"{prefix}hwqueue-form"}
        assert all(cookie["httpOnly"] and cookie["secure"] is secure for cookie in kept.values())
        assert secret not in str(kept)
        page.get_by_role("link", name="Pause").click()
        page.get_by_role("dialog").get_by_role("button", name="Pause").click()
        expect(page.get_by_text("Paused: nothing of it is granted.")).to_be_visible()
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_label("Token of the API")).to_be_visible()
        window.add_cookies([kept[f"{prefix}hwqueue-session"]])  # type: ignore[list-item]
        page.goto(f"{url}/queues/renders")
        expect(page.get_by_label("Token of the API")).to_be_visible()


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
    expect(why.locator(".say")).to_contain_text("Waits for step train: no live node can run it")
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


def test_a_large_graph_has_a_place_for_everything(
    visit: Visit, sql: Client, browser: Browser, dsn: str
) -> None:
    more = [
        {"name": f"s{number}", "task": "t", "after": sorted({f"s{number // 2}", f"s{number * 5 // 7}"})}
        for number in range(1, 60)
    ]
    last = [{"name": f"end{number}", "task": "t", "finally": "ended"} for number in range(20)]
    running = Running(sql, [{"name": "s0", "task": "t"}, *more, *last])
    page = visit.go(running.page)
    expect(page.locator("#graph")).to_be_visible()
    assert page.evaluate(WRONG_IN_GRAPH) == []
    lowest = "it => Math.max(...it.map((each) => each.getBoundingClientRect().top))"
    ends = page.locator("#graph [data-last]")
    assert ends.evaluate_all(lowest) > page.locator("#graph a:not([data-last])").evaluate_all(lowest)
    frame = page.locator(".graph")
    frame.evaluate("it => it.scrollLeft = 700")
    running.complete("s0")
    visit.refresh()
    box(page, "s1", "pending")
    assert page.evaluate(WRONG_IN_GRAPH) == []
    assert frame.evaluate("it => it.scrollLeft") == 700
    # who has no scripts has the table
    with visiting(browser, dsn, java_script_enabled=False) as bare:
        page = bare.go(running.page)
        assert page.locator("#graph").bounding_box() is None
        assert "The picture needs scripts" in page.content()
        expect(page.locator("#steps tbody tr")).to_have_count(80)


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
