"""Workflows that are written as functions of an app."""

from datetime import timedelta
from typing import Any

import pytest

from hwqueue import App, Client, LeaseContext, NodeSpec, Step, WorkflowTask
from hwqueue.errors import ConfigError
from hwqueue.testing import drain
from hwqueue.workflow import near, result, run_input, without_affinity
from tests.client.conftest import producer

app = App()
flow = app.workflow("gpu_training", queue="work", affinity_tags={"gpu": True}, result=result("train"))


@flow.step(override_affinity=without_affinity("gpu"), params={"dataset": run_input("dataset")})
def prepare(dataset: str) -> str:
    return f"{dataset}/prepared"


@flow.step(after=[prepare], max_attempts=1, near=near(prepare))
def train(_params: dict[str, Any], context: LeaseContext) -> str:
    assert context.step_name == "train"
    return f"trained on {context.result(prepare)}"


@flow.step("tell", task="tell_people", final="ended", replace_affinity=True)
async def tell_them() -> None:
    pass


client = producer


def test_a_decorated_function_is_a_task_and_a_step() -> None:
    assert isinstance(train, Step)
    assert set(app.tasks) == {"gpu_training.prepare", "gpu_training.train", "tell_people"}
    assert [step.name for step in flow.workflow.steps] == ["prepare", "train", "tell"]
    assert prepare.task is app.tasks["gpu_training.prepare"]
    assert app.workflows == {"gpu_training": flow}
    assert WorkflowTask is Step


def test_a_run_of_decorated_functions(client: Client) -> None:
    assert flow.workflow.define(client).created
    assert [step.code for step in flow.workflow.check(client)] == ["no_nodes"] * 3
    submitted = flow.workflow.submit(client, {"dataset": "s3://in"})
    asked = {step.step: step.placement for step in client.list_workflow_steps(submitted.run_id)}
    assert asked["prepare"] == asked["tell"] == {}
    drain(client, app, node=NodeSpec(name="n", instance_id="1", labels={"gpu": True}))
    found = client.get_workflow_run(submitted.run_id)
    assert (found.state, found.result) == ("completed", "trained on s3://in/prepared")


def test_the_options_of_the_task_are_the_tasks() -> None:
    other = App()
    timed = other.workflow("w").step(timeout=timedelta(seconds=3), priority=4)(prepare_again)
    assert timed.options["priority"] == 4
    task = other.tasks["w.prepare_again"]
    assert (task.defaults.timeout, task.defaults.queue) == (timedelta(seconds=3), "default")


def prepare_again() -> None:
    pass


def test_names_are_taken_once() -> None:
    other = App()
    one = other.workflow("w")
    one.step("a")(prepare_again)
    with pytest.raises(ConfigError, match="workflow 'w' is defined twice"):
        other.workflow("w")
    one.step("a", task="b")(prepare_again)
    with pytest.raises(ConfigError, match="two steps are called 'a'"):
        _ = one.workflow
    third = App()
    third.workflow("w")
    with pytest.raises(ConfigError, match="workflow 'w' is defined twice"):
        third.include(other)
    assert not third.tasks
    third = App()
    third.include(other)
    assert third.workflows == {"w": one}


STEPS = [
    {"name": "a", "task": "first", "params": {"n": {"$input": ["n"]}}},
    {"name": "b", "task": "second", "params": {"x": {"$result": "a", "default": None}}},
]
