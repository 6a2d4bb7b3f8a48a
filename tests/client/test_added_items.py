"""Items that handlers add to their step: in the test kit, and the methods of the clients."""

from __future__ import annotations

from typing import Any

import pytest

from hwqueue import App, WorkflowBuilder
from hwqueue.client import AsyncClient, Client
from hwqueue.errors import BadArgument, IdempotencyMismatch, StepUnknown
from hwqueue.handler.context import AsyncLeaseContext, LeaseContext
from hwqueue.testing import claim_one, drain, make_async_context, make_context
from hwqueue.types import AddedItem
from hwqueue.workflow import result, run_input
from tests.client.conftest import producer

pytestmark = pytest.mark.thorough

QUEUE = "work"
client = producer
app = App()


@app.task("fetch", queue=QUEUE)
def fetch(url: str, context: LeaseContext) -> dict[str, Any]:
    return {"url": url, "item": context.item_no, "step": context.step_name}


@app.task("crawl", queue=QUEUE)
def crawl(urls: list[str], context: LeaseContext) -> int:
    added = context.add_items(({"name": url, "params": {"url": url}} for url in urls), task=fetch)
    assert [each.created for each in added] == [context.attempt == 1] * len(urls)
    if context.attempt == 1:
        raise RuntimeError("killed")
    return len(added)


@app.task("crawl-async", queue=QUEUE)
async def crawl_async(urls: list[str], context: AsyncLeaseContext) -> int:
    items = [{"name": url, "params": {"url": url}, "task": "fetch"} for url in urls]
    return len(await context.add_items(items))


@app.task("index", queue=QUEUE)
def index(count: int, context: LeaseContext) -> list[Any]:
    assert context.result("crawl") == count
    return [[each.name, each.result["url"], each.item] for each in context.results("crawl")]


def site(task: str) -> Any:
    return (
        WorkflowBuilder("site")
        .task("crawl", task, params={"urls": run_input("urls")}, max_attempts=2, queue=QUEUE)
        .task("index", index, params={"count": result("crawl")})
        .with_options(result=result("index"))
        .build()
    )


@pytest.mark.parametrize("task", ["crawl", "crawl-async"])
def test_a_run_whose_handler_adds_items(client: Client, task: str) -> None:
    """The first attempt of `crawl` fails when it has added them, the second adds nothing."""
    client.set_queue_policy(QUEUE, {"retry": {"base": 0}})
    run = site(task).submit(client, {"urls": ["/", "/faq"]})
    drain(client, app, retries=True)
    found = client.get_workflow_run(run.run_id)
    assert (found.state, found.result) == ("completed", [["/", "/", 0], ["/faq", "/faq", 1]])
    step = client.list_workflow_steps(run.run_id)[0]
    assert (step.items, step.items_done, step.items_failed) == (2, 2, 0)


async def test_the_clients_say_the_same(client: Client, dsn: str) -> None:
    site("crawl").submit(client, {"urls": []})
    claim = claim_one(client, queue=QUEUE)
    who = (claim.lease_id, claim.claim_token)
    [added] = client.add_items(*who, [{"name": "a", "params": {"n": 1}}], task="fetch")
    assert added == AddedItem(name="a", item=0, created=True)
    async with AsyncClient(dsn) as other:
        [again] = await other.add_items(*who, [{"name": "a", "params": {"n": 1}, "task": fetch}])
    assert (again.item, again.created) == (0, False)
    with pytest.raises(IdempotencyMismatch):
        client.add_items(*who, [{"name": "a"}])
    with pytest.raises(BadArgument) as refused:
        client.add_items(*who, [{"name": "b", "params": {"x": object()}}])
    assert refused.value.detail["field"] == "items[0].params.x"
    with pytest.raises(BadArgument, match=r"items\[1\] must be a mapping, got str"):
        client.add_items(*who, [{"name": "b"}, "c"])  # type: ignore[list-item]
    client.spawn_lease(QUEUE, "fetch")
    alone = claim_one(client, queue=QUEUE)
    with pytest.raises(StepUnknown):
        client.add_items(alone.lease_id, alone.claim_token, [{"name": "a"}])


@app.task("copy", queue=QUEUE)
def copy(table: str) -> str:
    return table


def tables(*names: str) -> Any:
    built = WorkflowBuilder("tables")
    for name in names:
        built = built.task(name, copy, params={"table": name})
    return built.build()


@app.task("ingest", queue=QUEUE)
def ingest(context: LeaseContext) -> list[Any]:
    added = [context.add_steps(tables("a", "b")) for _ in range(2)]
    assert added[0].run_id == added[1].run_id
    return [each.created for each in added]


@app.task("ingest-async", queue=QUEUE)
async def ingest_async(context: AsyncLeaseContext) -> list[Any]:
    spec = {"name": "tables", "steps": [{"name": "a", "task": "copy", "params": {"table": "a"}}]}
    return [(await context.add_steps(spec)).created for _ in range(2)]


@pytest.mark.parametrize("task", ["ingest", "ingest-async"])
def test_a_run_whose_handler_adds_steps(client: Client, task: str) -> None:
    flow = WorkflowBuilder("all").task("ingest", task, queue=QUEUE)
    flow = flow.task("after", copy, params={"table": "last"}, after="ingest")
    run = flow.with_options(result=result("ingest")).build().submit(client)
    drained = drain(client, app)
    assert [each.claim.task_name for each in drained.runs][-1] == "copy"
    found = client.get_workflow_run(run.run_id)
    assert (found.state, found.result) == ("completed", [True, False])
    [below] = client.list_workflow_runs(workflow="tables")
    assert (below.workflow, below.state) == ("tables", "completed")


async def test_the_clients_add_the_same_steps(client: Client, dsn: str) -> None:
    site("crawl").submit(client, {"urls": []})
    claim = claim_one(client, queue=QUEUE)
    added = client.add_steps(claim.lease_id, claim.claim_token, tables("a"))
    async with AsyncClient(dsn) as other:
        again = await other.add_steps(claim.lease_id, claim.claim_token, tables("a"))
    assert (again.run_id, added.created, again.created) == (added.run_id, True, False)
    with pytest.raises(IdempotencyMismatch):
        client.add_steps(claim.lease_id, claim.claim_token, tables("b"))


async def test_a_context_that_a_test_makes_keeps_the_names() -> None:
    context = make_context()
    assert [each.item for each in context.add_items([{"name": "a"}, {"name": "b"}])] == [0, 1]
    [again] = context.add_items([{"name": "b"}])
    assert (again.item, again.created) == (1, False)
    [added] = await make_async_context().add_items([{"name": "a"}])
    assert added.created
    runs = [context.add_steps(tables("a")) for _ in range(2)]
    assert [each.created for each in runs] == [True, False]
    assert runs[0].run_id == runs[1].run_id
