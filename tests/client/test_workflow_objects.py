"""Workflows that are written in Python, as the database takes them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from hwqueue import (
    App,
    AsyncLeaseContext,
    Client,
    LeaseContext,
    NodeSpec,
    Placement,
    Step,
    Workflow,
    WorkflowBuilder,
)
from hwqueue.errors import ConfigError, PlacementContradictory
from hwqueue.testing import drain
from hwqueue.workflow import completed, ended, item, literal, near, result, results, run, run_input
from tests.client.conftest import producer

pytestmark = pytest.mark.thorough

app = App()


@app.task("prepare", queue="work")
def prepare(dataset: str) -> dict[str, str]:
    return {"uri": f"{dataset}/prepared"}


@app.task("train", queue="work", max_attempts=1)
def train(data: str, rate: float) -> dict[str, float]:
    return {"loss": len(data) * rate}


@app.task("publish", queue="work")
def publish(loss: float) -> str:
    return f"published with {loss}"


@app.task("tell", queue="work")
def tell(run_id: str) -> None:
    assert run_id


TRAINING = (
    WorkflowBuilder("training")
    .with_affinity(gpu=True)
    .task("prepare", prepare, params={"dataset": run_input("dataset")}, override_affinity={"gpu": None})
    .task(
        "train",
        train,
        params={"data": result("prepare", "uri"), "rate": run_input("rate", default=0.5)},
        placement=Placement().tolerate("dedicated"),
        claim_timeout=timedelta(minutes=2),
    )
    .task(
        "publish", publish, params={"loss": result("train", "loss")}, run_if=[result("train", "loss") < 100]
    )
    .task("tell", tell, final="ended", params={"run_id": run("id")}, replace_affinity=True)
    .with_options(result=result("publish"), retain_completed=timedelta(days=1))
    .build()
)


client = producer


def test_a_run_of_the_builders_workflow(client: Client) -> None:
    assert TRAINING.define(client).created
    assert not TRAINING.define(client).created
    submitted = TRAINING.submit(client, {"dataset": "s3://in"})
    node = NodeSpec(name="n", instance_id="1", labels={"gpu": True})
    drain(client, app, node=node)
    found = client.get_workflow_run(submitted.run_id)
    assert (found.state, found.result) == ("completed", "published with 8.0")
    by_name = client.submit_workflow("training", {"dataset": "s3://in"})
    assert client.get_workflow_run(by_name.run_id).version == 1


def test_map_and_reduce_over_shards(client: Client) -> None:
    counting = App()

    @counting.task("split", queue="work")
    def split(text: str) -> dict[str, list[str]]:
        return {"shards": text.split(".")}

    @counting.task("count_words", queue="work")
    def count_words(shard: str, context: LeaseContext) -> dict[str, int | None]:
        return {"words": len(shard.split()), "item": context.item_no}

    @counting.task("add_up", queue="work")
    def add_up(counts: list[int], numbers: list[int], context: LeaseContext) -> int:
        assert (numbers, context.item_no) == ([0, 1, 2], None)
        return sum(counts)

    count = (
        WorkflowBuilder("count")
        .task("split", split, params={"text": run_input("text")})
        .map("words", count_words, over=result("split", "shards"), params={"shard": item()}, max_parallel=2)
        .task(
            "total", add_up, params={"counts": results("words", "words"), "numbers": results("words", "item")}
        )
        .task("look", "look", after="words", queue="work")
        .with_options(result=result("total"))
        .build()
    )
    seen: list[object] = []

    @counting.task("look", queue="work")
    def look(context: LeaseContext) -> None:
        seen.append(context.result("words"))
        seen.extend(each.result for each in context.results("words"))

    submitted = count.submit(client, {"text": "one two. three. four five six"})
    drain(client, counting)
    assert client.get_workflow_run(submitted.run_id).result == 6
    words = client.list_workflow_steps(submitted.run_id)[1]
    assert (words.kind, words.items, words.items_done, words.items_failed) == ("map", 3, 3, 0)
    words_of = [{"words": 2, "item": 0}, {"words": 1, "item": 1}, {"words": 3, "item": 2}]
    assert seen == [{"items": 3, "failed": 0}, *words_of]


def test_each_step_asks_its_own_and_what_its_run_asks(client: Client) -> None:
    submitted = TRAINING.submit(client, {"dataset": "x"}, affinity_tags={"zone": "west"})
    asked = {
        step.step: sorted(each["label"] for each in (step.placement or {}).get("require", []))
        for step in client.list_workflow_steps(submitted.run_id)
    }
    assert asked == {"prepare": ["zone"], "train": ["gpu", "zone"], "publish": ["gpu", "zone"], "tell": []}
    step = Step("report", "report", affinity_tags={"gpu": False})
    workflow = Workflow(name="w", tasks=[step], affinity_tags={"gpu": True}, queue="work")
    with pytest.raises(PlacementContradictory, match="report"):
        workflow.submit(client)


def test_everything_that_can_be_written_is_understood(client: Client) -> None:
    workflow = Workflow(
        name="all",
        tasks=[
            Step("a", "t", params=literal({"$x": 1}), options={"priority": 3, "labels": {"k": "v"}}),
            Step("b", "t", after=["a"], on_failure="ignore", affinity="replace"),
            Step("c", "t", after=[ended("a"), "b"], join="any", run_if=[run_input("go").exists()]),
            Step("d", "t", params={"x": [result("c", 0, default=None)]}, final="failed"),
        ],
        placement=Placement().tolerate("dedicated"),
        queue="work",
        labels={"team": "vision"},
        tenant="acme",
        priority=2,
        deadline=timedelta(hours=1),
        on_failure="fail_fast",
        retain_completed=timedelta(days=1),
        retain_failed=timedelta(days=2),
    )
    assert workflow.define(client).created
    assert client.get_workflow("all").spec["on_failure"] == "fail_fast"


@app.task("read", queue="work")
def read(context: LeaseContext) -> Any:
    return [context.run_input(), context.result("prepare")]


@app.task("read-async", queue="work")
async def read_async(context: AsyncLeaseContext) -> Any:
    [prepared] = [each.result async for each in context.results("prepare")]
    return [await context.run_input(), prepared]


READS = Workflow(
    name="reads",
    tasks=[
        Step("prepare", prepare, params={"dataset": "x"}),
        Step("read", read, after="prepare"),
        Step("read-async", read_async, after="prepare"),
    ],
    result=literal(1),
)


def test_handlers_of_drained_leases_read_their_run(client: Client) -> None:
    run_id = READS.submit(client, {"n": 1}).run_id
    drain(client, app)
    for name in ("read", "read-async"):
        [found] = client.step_results(run_id, name)
        assert found.result == [{"n": 1}, {"uri": "x/prepared"}]


def test_a_condition_alone_and_a_value_that_is_true() -> None:
    less, ready = result("a", "loss") < 1, result("a", "ready")
    assert Step("b", "t", run_if=less).run_if == (less,)
    assert Step("b", "t", run_if=ready).run_if == (ready.in_(True),)
    assert Step("b", "t", run_if=[less, ready]).edges == (completed("a"),)
    with pytest.raises(ConfigError, match="step 'b': run_if takes conditions, not True"):
        Step("b", "t", run_if=[True])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="is near 'x', which is not there"):
        Workflow(name="w", tasks=[Step("a", "t", near=near("x"))])
    with pytest.raises(ConfigError, match=r"step 'b': near takes what near\(...\) makes, not 'a'"):
        Step("b", "t", near="a")  # type: ignore[arg-type]
