"""Workflows of three steps, their tasks, and a program that runs one."""

from datetime import timedelta

import hwqueue
from hwqueue import Client, Step, Workflow
from hwqueue.workflow import Sleep, Wait, ended, result, run_input

app = hwqueue.App()


@app.task("prepare_data")
def prepare_data(dataset: str) -> dict[str, str]:
    if not dataset.startswith("s3://"):
        raise hwqueue.Reject(f"no such dataset: {dataset}")
    return {"uri": f"{dataset}/prepared"}


@app.task("train")
def train(data: str) -> dict[str, str]:
    return {"model": f"{data}/model"}


@app.task("tell_people")
def tell_people() -> None: ...


training = Workflow(
    name="training",
    affinity_tags={"zone": "west"},
    tasks=[
        Step("prepare", "prepare_data", params={"dataset": run_input("dataset")}),
        Step(
            "train",
            "train",
            params={"data": result("prepare", "uri")},
            affinity_tags={"gpu": True},
        ),
        Step("tell", "tell_people", after=ended("train")),
    ],
    result=result("train"),
)


release = Workflow(
    name="release",
    tasks=[
        Wait("approve", "approved", timeout=timedelta(days=2), on_timeout="skip"),
        Sleep("cool-down", timedelta(seconds=1), after="approve"),
        Step("tell", "tell_people", after="cool-down"),
    ],
    result=result("approve", "by"),
)


def main() -> None:
    with Client() as client:
        client.define_workflow(training)
        run = client.submit_workflow("training", {"dataset": "s3://films"}, idempotency_key="films")
        done = client.wait_for_run(run.run_id, timeout=timedelta(minutes=1))
        print(done.state, done.result)
        for step in client.list_workflow_steps(run.run_id):
            print(step.step, step.state, step.attempt)


if __name__ == "__main__":
    main()
