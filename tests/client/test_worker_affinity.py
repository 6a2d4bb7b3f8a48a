"""Worker affinity for workflow routing: which workers run which workflows, in a mixed fleet.

The four cases of the proposal, each with a workflow of three steps: by default every worker may
run all of it, tags keep it on workers that have all of them, and without one it stays pending.
"""

from typing import Any
from uuid import UUID, uuid4

import pytest

from hwqueue.client import AsyncClient
from hwqueue.types import NodeSpec
from tests.client.conftest import Node

FLEET: dict[str, dict[str, Any]] = {
    "plain": {},
    "gpu-west": {"gpu": True, "region": "us-west"},
    "gpu-east": {"gpu": True, "region": "us-east"},
    "cpu-east": {"gpu": False, "region": "us-east"},
    "gpu-text": {"gpu": "true", "region": "us-east"},
}
STEPS: list[dict[str, Any]] = [
    {"name": "prepare", "task": "prepare"},
    {"name": "train", "task": "train", "after": ["prepare"]},
    {"name": "publish", "task": "publish", "after": ["train"]},
]


@pytest.fixture
async def workers(client: AsyncClient, queue: str) -> dict[str, Node]:
    """A worker for each set of tags, and the workflows that the cases submit."""
    for name in ("test_default", "test_gpu", "test_multi", "test_nomatch"):
        await client.define_workflow({"name": name, "queue": queue, "steps": STEPS})
    registered = {}
    for name, labels in FLEET.items():
        spec = NodeSpec(name=name, instance_id="first", labels=labels)
        node_id = uuid4()
        registered[name] = Node(node_id, await client.register_node(node_id, spec))
    return registered


async def try_all(client: AsyncClient, workers: dict[str, Node], queue: str) -> set[str]:
    """The workers that may claim what is due now; each hands it back."""
    able = set()
    for name, node in workers.items():
        for claim in await client.claim_task([queue], node.node_id, node.epoch):
            able.add(name)
            await client.release_lease(claim.lease_id, claim.claim_token)
    return able


async def claimants(
    client: AsyncClient, workers: dict[str, Node], queue: str, run_id: UUID
) -> list[set[str]]:
    """Of each step in turn: the workers that may claim it. Ends the run if there are any."""
    able = []
    for _ in STEPS:
        able.append(await try_all(client, workers, queue))
        if not able[-1]:
            break
        node = workers[min(able[-1])]
        [claim] = await client.claim_task([queue], node.node_id, node.epoch)
        await client.complete_lease(claim.lease_id, claim.claim_token)
    else:
        assert (await client.get_workflow_run(run_id)).state == "completed"
    return able


async def test_a_workflow_runs_on_workers_that_have_all_its_tags(
    client: AsyncClient, queue: str, workers: dict[str, Node]
) -> None:
    cases: list[tuple[str, dict[str, Any] | None, set[str]]] = [
        ("test_default", None, set(FLEET)),
        ("test_gpu", {"gpu": True}, {"gpu-west", "gpu-east"}),
        ("test_multi", {"gpu": True, "region": "us-east"}, {"gpu-east"}),
    ]
    for workflow, asked, able in cases:
        run = await client.submit_workflow(workflow, affinity_tags=asked)
        assert await claimants(client, workers, queue, run.run_id) == [able] * 3, workflow


async def test_no_matching_workers(client: AsyncClient, queue: str, workers: dict[str, Node]) -> None:
    workflow = await client.submit_workflow("test_nomatch", affinity_tags={"nonexistent": True})
    assert await claimants(client, workers, queue, workflow.run_id) == [set()]
    await client.reap()
    first, second, third = await client.list_workflow_steps(workflow.run_id)
    assert (first.lease_state, second.state, third.state) == ("pending", "waiting", "waiting")
    assert first.lease_id is not None
    found = await client.explain_lease(first.lease_id)
    assert (found.nodes_matching, found.code, found.permanent) == (0, "label_missing", True)
    late = NodeSpec(name="late", instance_id="first", labels={"nonexistent": True})
    node_id = uuid4()
    fleet = workers | {"late": Node(node_id, await client.register_node(node_id, late))}
    assert await claimants(client, fleet, queue, workflow.run_id) == [{"late"}] * 3


@pytest.mark.thorough
async def test_a_step_may_leave_the_affinity_of_its_run(
    client: AsyncClient, queue: str, workers: dict[str, Node]
) -> None:
    """As in a training whose preparation needs no GPU."""
    steps: list[dict[str, Any]] = [
        STEPS[0] | {"affinity": "override", "affinity_tags": {"gpu": False}},
        *STEPS[1:],
    ]
    spec = {"name": "mixed", "queue": queue, "steps": steps}
    workflow = await client.submit_spec(spec, affinity_tags={"gpu": True, "region": "us-east"})
    found = await claimants(client, workers, queue, workflow.run_id)
    assert found == [{"cpu-east"}, {"gpu-east"}, {"gpu-east"}]
