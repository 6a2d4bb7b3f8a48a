"""Workflows, through both clients."""

from datetime import UTC, datetime, timedelta

import pytest

from hwqueue.client import AsyncClient
from hwqueue.errors import UniqueConflict
from hwqueue.types import Unique
from tests.client.conftest import Node

STEPS = [
    {"name": "a", "task": "first", "params": {"n": {"$input": ["n"]}}},
    {"name": "b", "task": "second", "params": {"x": {"$result": "a", "default": None}}},
]


async def test_from_defined_to_completed(client: AsyncClient, queue: str, node: Node) -> None:
    spec = {"name": "film", "queue": queue, "steps": STEPS, "result": {"$result": "b"}}
    defined = await client.define_workflow(spec)
    assert (defined.version, defined.created) == (1, True)
    assert (await client.get_workflow("film")).step_count == 2
    assert [each.workflow for each in await client.list_workflows()] == ["film"]
    deadline = datetime.now(UTC) + timedelta(hours=1)
    run = await client.submit_workflow("film", {"n": 1}, deadline=deadline, labels={"app": "x"})
    assert (run.created, run.state) == (True, "running")
    found = await client.get_workflow_run(run.run_id)
    assert (found.input, found.deadline, found.duration) == ({"n": 1}, deadline, None)
    for _ in STEPS:
        [claim] = await client.claim_task([queue], node.node_id, node.epoch, qty=10)
        await client.complete_lease(claim.lease_id, claim.claim_token, result={"done": True})
    found = await client.get_workflow_run(run.run_id)
    assert (found.state, found.result, found.version) == ("completed", {"done": True}, 1)
    assert found.duration is not None
    first, second = await client.list_workflow_steps(run.run_id)
    assert (first.step, first.state, first.result) == ("a", "completed", {"done": True})
    assert (second.waits_for, second.placement) == ((), {})
    [listed] = await client.list_workflow_runs(workflow="film", labels={"app": "x"})
    assert listed.run_id == run.run_id
    at = listed.submitted_at
    [same] = await client.list_workflow_runs(submitted_from=at, submitted_before=deadline)
    assert same == listed
    assert await client.list_workflow_runs(submitted_before=at) == []
    assert await client.list_workflow_runs(submitted_from=at + timedelta(milliseconds=1)) == []


async def test_unique_runs(client: AsyncClient, queue: str) -> None:
    await client.define_workflow({"name": "film", "queue": queue, "steps": STEPS})
    unique = Unique(key="k", on_conflict="replace")
    first, second, third = await client.submit_workflows(
        "film", [{"input": {"n": 1}}, {"input": {"n": 2}, "options": {"unique": unique}}, {"input": {"n": 3}}]
    )
    assert [one.created for one in (first, second, third)] == [True] * 3
    assert await client.run_input(third.run_id) == {"n": 3}
    replacing = await client.submit_workflow("film", {"n": 4}, unique=unique)
    assert (await client.get_workflow_run(second.run_id)).state == "cancelled"
    kept = await client.submit_workflow("film", {"n": 4}, unique=Unique(key="k"))
    assert (kept.run_id, kept.created) == (replacing.run_id, False)
    with pytest.raises(UniqueConflict):
        await client.submit_workflow("film", {"n": 4}, unique=Unique(key="k", on_conflict="raise"))
