"""Text of a tenant that turns the direction of writing: it ends where the text ends."""

from html.parser import HTMLParser
from typing import Any
from uuid import uuid4

from hwqueue.client import Client
from hwqueue.types import NodeSpec
from tests.dashboard.conftest import Pages

TURN = "\u202e"  # right-to-left override: what follows in its paragraph reads backwards
ZONE, KIND = f"{TURN}zone", f"{TURN}kind"
TOGETHER = f"label:{ZONE}"
WORKFLOW = {
    "name": "training",
    "queue": "training",
    "affinity_tags": {KIND: "c"},
    "steps": [{"name": "train", "task": "train"}],
}
# elements that hold nothing but such text
ALONE = {"bdi", "pre", "title"}


class Turned(HTMLParser):
    """Where a page turns outside of an element that ends it."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found = 0
        self.loose: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open += [tag] if tag in ALONE else []

    def handle_endtag(self, tag: str) -> None:
        if tag in ALONE:
            self.open.remove(tag)

    def handle_data(self, data: str) -> None:
        self.found += TURN in data
        if TURN in data and not self.open:
            self.loose.append(data)


async def test_text_that_turns_is_isolated(pages: Pages, sql: Client) -> None:
    sql.create_queue("training")
    for name in ("n-1", "n-2"):
        spec = NodeSpec(name=name, instance_id="1", labels={ZONE: name, KIND: name}, slots=1)
        sql.register_node(uuid4(), spec)
    member: dict[str, Any] = {"task": "train", "count": 2}
    [apart] = {each.gang_id for each in sql.spawn_gang("training", [member], same=[KIND, ZONE])}
    member["options"] = {"affinity_tags": {KIND: "c"}}
    [nowhere] = {each.gang_id for each in sql.spawn_gang("training", [member], together=TOGETHER)}
    run = sql.submit_spec(WORKFLOW).run_id
    [step] = sql.list_workflow_steps(run)
    sql.reap()
    told = {
        path: await turned(pages, path)
        for path in (
            *(f"/gangs/{apart}", f"/gangs/{apart}/why", f"/gangs/{nowhere}/why"),
            *(f"/runs/{run}", f"/runs/{run}/why"),
            *(f"/leases/{step.lease_id}/why", "/pending"),
        )
    }
    sql.cancel_gang(nowhere, reason=ZONE)
    sql.cancel_workflow_run(run, reason=ZONE)
    sql.reap()
    told |= {f"{path}, ended": await turned(pages, path) for path in (f"/runs/{run}", "/gangs")}
    assert {path: loose for path, (_, loose) in told.items() if loose} == {}
    assert [path for path, (found, _) in told.items() if not found] == []


async def turned(pages: Pages, path: str) -> tuple[int, list[str]]:
    """How often a page turns, and what of it nothing ends."""
    page = Turned()
    page.feed(await pages.page(path))
    return page.found, page.loose
