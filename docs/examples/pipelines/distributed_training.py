"""Distributed training: shards from a CPU machine, four ranks that start together in one rack."""

from datetime import timedelta
from typing import Any
from uuid import UUID

from hwqueue import App, Client, LeaseContext, Placement, WorkflowBuilder
from hwqueue.workflow import index, result, results, run_input

app = App()
Points = list[tuple[float, float]]


@app.task("distributed.split")
def split(count: int, ranks: int) -> list[Points]:
    points = [(x / count, 3 * x / count + 0.5) for x in range(count)]
    return [points[rank::ranks] for rank in range(ranks)]


@app.task("distributed.fit", timeout=timedelta(hours=6))
def fit(context: LeaseContext, shards: list[Points], rank: int) -> dict[str, Any]:
    """One rank. Real ones start torch with `context.gang.environment(port=29500)`."""
    gang = context.gang
    assert gang is not None
    assert (gang.rank, gang.size) == (rank, len(shards))
    points = shards[rank]
    slope = offset = 0.0
    for _ in range(400):
        context.raise_if_cancelled()  # a rank was lost: all begin again
        errors = [(slope * x + offset - y, x) for x, y in points]
        slope -= 0.5 * sum(error * x for error, x in errors) / len(errors)
        offset -= 0.5 * sum(error for error, _ in errors) / len(errors)
    return {"slope": slope, "offset": offset}


@app.task("distributed.report")
def report(models: list[dict[str, float]]) -> str:
    slope = sum(model["slope"] for model in models) / len(models)
    offset = sum(model["offset"] for model in models) / len(models)
    return f"{len(models)} ranks: y = {slope:.2f} x + {offset:.2f}"


pipeline = (
    WorkflowBuilder("distributed_training")
    .task("split", split, params={"count": run_input("points"), "ranks": 4})
    .gang(
        "train",
        fit,
        size=4,
        together="rack",
        params={"shards": result("split"), "rank": index()},
        placement=Placement().resources(gpu=1),
        max_attempts=3,
    )
    .task("report", report, params={"models": results("train")})
    .with_options(result=result("report"))
    .build()
)


def submit(client: Client, **tags: Any) -> UUID:
    """Tags say more about all machines: `submit(client, region="eu")`."""
    return pipeline.submit(client, {"points": 80}, affinity_tags=tags).run_id
