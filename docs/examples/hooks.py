"""Hooks of a worker, and a lease that is put off.

Run: HWQUEUE_DSN=$(hwqueue db url) python hooks.py
"""

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import example_worker

import hwqueue

app = hwqueue.App()
models: dict[str, str] = {}


@app.on_start
def load() -> None:
    models["small"] = "loaded once for each worker"
    print("start")


@app.on_stop
async def unload() -> None:
    models.clear()
    print("stop")


@app.on_failure
def count(claim: hwqueue.Claim, error: Mapping[str, Any]) -> None:
    print("attempt", claim.attempt, "of", claim.task_name, "failed:", error["message"])


@app.on_dead
async def page_somebody(claim: hwqueue.Claim, error: Mapping[str, Any]) -> None:
    print(claim.task_name, "is dead:", error["type"])


@app.task("ask", queue="questions", max_attempts=1)
def ask(question: Any) -> str:
    if question == "busy" and "asked" not in models:
        models["asked"] = "once"
        raise hwqueue.Snooze("the model is busy", after=timedelta(milliseconds=100))
    if question == "hard":
        raise LookupError("no answer")
    return models["small"]


if __name__ == "__main__":
    for lease in example_worker.run(app, ask, "easy", "busy", "hard"):
        print(lease.state.value, lease.attempt, lease.result)
