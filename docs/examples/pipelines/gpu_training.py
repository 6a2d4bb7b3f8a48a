"""GPU training: preparation on a CPU machine, training on two GPUs, scoring in the same rack."""

from datetime import timedelta
from typing import Any
from uuid import UUID

from hwqueue import App, Client, LeaseContext, Placement, WorkflowBuilder
from hwqueue.workflow import near, result, run_input

app = App()
Points = list[tuple[float, float]]


@app.task("training.prepare")
def prepare(count: int) -> dict[str, Points]:
    points = [(x / count, 3 * x / count + 0.5) for x in range(count)]
    return {"train": points[::2], "even": points[1::4], "odd": points[3::4]}


@app.task("training.fit", timeout=timedelta(hours=6))
def fit(context: LeaseContext, points: Points, rounds: int) -> dict[str, Any]:
    slope = offset = 0.0
    for done in range(rounds):
        errors = [(slope * x + offset - y, x) for x, y in points]
        slope -= 0.5 * sum(error * x for error, x in errors) / len(errors)
        offset -= 0.5 * sum(error for error, _ in errors) / len(errors)
        context.progress(done + 1, total=rounds)
    gpus = len(context.assignment.gpus) if context.assignment else 0
    return {"slope": round(slope, 6), "offset": round(offset, 6), "gpus": gpus}


@app.task("training.score")
def score(model: dict[str, float], points: Points) -> float:
    return round(max(abs(model["slope"] * x + model["offset"] - y) for x, y in points), 6)


@app.task("training.publish")
def publish(model: dict[str, float], worst: list[float]) -> str:
    return f"y = {model['slope']:.2f} x + {model['offset']:.2f}, error below {max(worst):.0e}"


pipeline = (
    WorkflowBuilder("gpu_training")
    .with_affinity(gpu=True)
    .task("prepare", prepare, override_affinity={"gpu": False}, params={"count": run_input("points")})
    .task(
        "train",
        fit,
        params={"points": result("prepare", "train"), "rounds": run_input("rounds", default=400)},
        placement=Placement().resources(gpu=2),
        max_attempts=3,
    )
    .task(
        "score_even",
        score,
        params={"model": result("train"), "points": result("prepare", "even")},
        override_affinity={"gpu": False},
        near=near("train", "rack"),
        patience=timedelta(minutes=5),  # so long it waits for a place in that rack
    )
    .task(
        "score_odd",
        score,
        params={"model": result("train"), "points": result("prepare", "odd")},
        override_affinity={"gpu": False},
        near=near("train", "rack"),
        patience=timedelta(minutes=5),  # so long it waits for a place in that rack
    )
    .task(
        "publish",
        publish,
        params={"model": result("train"), "worst": [result("score_even"), result("score_odd")]},
        run_if=[result("score_even") < 0.01, result("score_odd") < 0.01],
        replace_affinity=True,
    )
    .with_options(result=result("publish", default="not good enough"))
    .build()
)


def submit(client: Client, rounds: int = 400, **tags: Any) -> UUID:
    """Tags say more about all machines: `submit(client, region="eu")`."""
    return pipeline.submit(client, {"points": 80, "rounds": rounds}, affinity_tags=tags).run_id
