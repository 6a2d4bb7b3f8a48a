"""Hyper-parameter sweep: a trial for each pair of settings, on a GPU of its own; some diverge."""

from itertools import product
from uuid import UUID

from hwqueue import App, Client, LeaseContext, Placement, Reject, WorkflowBuilder
from hwqueue.workflow import item, result, run_input

app = App()


@app.task("sweep.grid", queue="sweep")
def grid(rates: list[float], momenta: list[float]) -> list[dict[str, float]]:
    return [{"rate": rate, "momentum": momentum} for rate, momentum in product(rates, momenta)]


@app.task("sweep.trial", queue="sweep", placement=Placement().resources(gpu=1))
def trial(rate: float, momentum: float, rounds: int) -> dict[str, float]:
    """Gradient steps with momentum towards the minimum of (x - 3) ** 2."""
    x = speed = 0.0
    for _ in range(rounds):
        speed = momentum * speed - rate * 2 * (x - 3)
        x += speed
        if abs(x) > 1e6:
            raise Reject(f"diverges with rate {rate}")  # no second attempt
    return {"rate": rate, "momentum": momentum, "loss": round((x - 3) ** 2, 6)}


@app.task("sweep.best", queue="sweep")
def best(context: LeaseContext) -> dict[str, float]:
    trials = [each.result for each in context.results("trials") if each.state == "completed"]
    return min(trials, key=lambda trial: trial["loss"])


pipeline = (
    WorkflowBuilder("sweep")
    .with_options(queue="sweep", result=result("best"))
    .with_affinity(region="us")
    .task("grid", grid, params=run_input())
    .map(
        "trials",
        trial,
        over=result("grid"),
        params={"rate": item("rate"), "momentum": item("momentum"), "rounds": 30},
        max_parallel=8,
        tolerate="40 %",
    )
    .task("best", best, after="trials")
    .build()
)


def submit(client: Client, *rates: float) -> UUID:
    settings = {"rates": list(rates) or [0.01, 0.1, 1.5], "momenta": [0.0, 0.5, 0.9]}
    return pipeline.submit(client, settings).run_id
