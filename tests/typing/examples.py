"""Calls of what docs/examples define, right and wrong; nothing here is run.

`make check` type-checks the examples themselves. This says that a wrong call in one of them is an
error: each has a `type: ignore`, and both checkers report an ignore that nothing needs.
"""

from typing import Any, assert_type
from uuid import UUID

import durable_steps
import gpu_training
import human_approval
import nightly_etl
import results
import training_flow
import web_orders

import hwqueue
from hwqueue import LeaseContext, Step, Workflow
from hwqueue.client import TaskSpawned


async def right(client: hwqueue.Client, other: hwqueue.AsyncClient) -> None:
    assert_type(web_orders.send_invoice.spawn(client, order_id=1), TaskSpawned[None])
    order = await durable_steps.order.spawn(other, card="visa", amount=30)
    assert_type(await order.result(), dict[str, object])
    assert_type(gpu_training.submit(client, rounds=10, region="eu"), UUID)


def wrong_leases(client: hwqueue.Client, context: LeaseContext) -> None:
    web_orders.send_invoice.spawn(client)  # type: ignore[call-overload]
    web_orders.send_invoice.spawn(client, order_id="1")  # type: ignore[call-overload]
    durable_steps.order.spawn(client, card="visa", sum=30)  # type: ignore[call-overload]
    results.square.spawn(client, 3)  # type: ignore[call-overload]
    training_flow.train(date="s3://films")  # type: ignore[call-arg]
    client.get_lease(1)  # type: ignore[arg-type]
    context.step("charge", durable_steps.charge, "visa")  # type: ignore[call-overload]
    context.wait_for("packed", timeout=3)  # type: ignore[arg-type]


def wrong_workflows(client: hwqueue.Client) -> Workflow:
    client.submit_workflow(training_flow.training)  # type: ignore[arg-type]
    client.define_workflow("training")  # type: ignore[arg-type]
    client.wait_for_run(1)  # type: ignore[arg-type]
    human_approval.submit(client, "forty")  # type: ignore[arg-type]
    nightly_etl.submit(client, night="2030-01-31")  # type: ignore[arg-type]
    steps: list[Any] = [Step("tell", "tell_people", afterr="train")]  # type: ignore[call-arg]
    return Workflow(name="training", steps=steps)  # type: ignore[call-arg]
