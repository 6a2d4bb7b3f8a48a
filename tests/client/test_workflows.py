"""Workflows, through both clients."""

from datetime import UTC, datetime, timedelta

import pytest

from hwqueue.client import AsyncClient
from hwqueue.errors import BadArgument, StepOfRun, StepUnknown, UniqueConflict, WrongRunState
from hwqueue.placement import Placement
from hwqueue.types import Unique
from tests.client.conftest import Node

STEPS = [
    {"name": "a", "task": "first", "params": {"n": {"$input": ["n"]}}},
    {"name": "b", "task": "second", "params": {"x": {"$result": "a", "default": None}}},
]


async def end(client: AsyncClient, queue: str, node: Node, *, fails: bool = False) -> None:
    """Claim what is released, and settle it."""
    for claim in await client.claim_task([queue], node.node_id, node.epoch, qty=10):
        if fails:
            await client.fail_lease(claim.lease_id, claim.claim_token, error={"message": "no"}, retry=False)
        else:
            await client.complete_lease(claim.lease_id, claim.claim_token, result={"done": True})


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
        await end(client, queue, node)
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


async def test_changes(client: AsyncClient, queue: str, node: Node) -> None:
    spec = {"name": "film", "queue": queue, "steps": STEPS}
    run = (await client.submit_spec(spec, {"n": 1}, idempotency_key="k")).run_id
    assert not (await client.submit_spec(spec, {"n": 1}, idempotency_key="k")).created
    assert await client.pause_workflow_run(run) == "paused"
    assert await client.resume_workflow_run(run) == "running"
    await end(client, queue, node, fails=True)
    [a, _] = await client.list_workflow_steps(run)
    assert a.lease_id is not None
    with pytest.raises(StepOfRun):
        await client.requeue_lease(a.lease_id)
    with pytest.raises(WrongRunState):
        await client.cancel_workflow_run(run)
    assert await client.retry_workflow_run(run) == "running"
    assert await client.skip_step(run, "a", result=1, reason="by hand") == "running"
    with pytest.raises(StepUnknown):
        await client.signal_workflow_run(run, "go")
    assert await client.cancel_workflow_run(run, reason="no") == "cancelled"
    advanced = await client.advance_workflows()
    assert (advanced.released, advanced.more) == (0, False)


async def test_steps_that_wait_are_updated(client: AsyncClient, queue: str, node: Node) -> None:
    spec = {"name": "film", "queue": queue, "steps": STEPS}
    run = (await client.submit_spec(spec, {"n": 1})).run_id
    place = Placement().resources(cpu_milli=2000)
    [seen] = await client.preview_update(run, placement=place, app_version="2.0")
    assert (seen.step, seen.changed, seen.nodes_matching) == ("b", True, 0)
    [found] = await client.update_steps(run, steps=["b"], placement=place)
    assert (found.kind, found.came_from) == ("task", {"resources": {"cpu_milli": ["update"]}})
    [found] = await client.update_steps(run, affinity_tags={"gpu": True}, affinity="replace")
    assert found.placement is not None
    assert found.placement.keys() == {"require"}
    with pytest.raises(WrongRunState):
        await client.update_steps(run, steps=["a"], app_version=None)


async def test_results_of_steps(client: AsyncClient, queue: str, node: Node) -> None:
    run = (await client.submit_spec({"name": "f", "queue": queue, "steps": STEPS}, {"n": 1})).run_id
    await end(client, queue, node)
    [found] = await client.step_results(run, "a")
    assert (found.item, found.state, found.result) == (0, "completed", {"done": True})
    assert await client.step_results(run, "a", after=found.item) == []
    assert await client.run_input(run) == {"n": 1}


async def test_a_run_for_later(client: AsyncClient, queue: str) -> None:
    spec = {"name": "film", "queue": queue, "steps": STEPS}
    begins = datetime(2100, 1, 1, tzinfo=UTC)
    later = await client.submit_spec(spec, {"n": 1}, available_at=begins)
    delayed = await client.submit_spec(spec, {"n": 1}, delay=timedelta(hours=1))
    for run in (later, delayed):
        [a, _] = await client.list_workflow_steps(run.run_id)
        assert a.lease_state == "scheduled"
        assert a.lease_id is not None
        at = (await client.get_lease(a.lease_id)).available_at
        assert (at == begins) is (run is later)
    with pytest.raises(BadArgument, match="time zone"):
        await client.submit_spec(spec, {"n": 1}, available_at=begins.replace(tzinfo=None))
    with pytest.raises(BadArgument, match="both delay and available_at"):
        await client.submit_spec(spec, {"n": 1}, available_at=begins, delay=timedelta(hours=1))


async def test_nested_runs_are_listed(client: AsyncClient, queue: str) -> None:
    await client.define_workflow({"name": "below", "queue": queue, "steps": STEPS})
    steps = [{"name": "n", "kind": "workflow", "workflow": "below", "input": {"n": 1}}]
    above = (await client.submit_spec({"name": "above", "steps": steps})).run_id
    await client.advance_workflows()
    [nested] = await client.list_workflow_runs(parent_run_id=above)
    assert (nested.workflow, nested.root_run_id) == ("below", above)
    assert await client.list_workflow_runs(root_run_id=above) == [nested]
    assert await client.list_workflow_runs(is_nested=True) == [nested]
    assert [each.run_id for each in await client.list_workflow_runs(is_nested=False)] == [above]


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


async def test_a_check(client: AsyncClient, queue: str, node: Node) -> None:
    steps = [{"name": "a", "task": "t"}, {"name": "b", "task": "t", "affinity_tags": {"gpu": 7}}]
    spec = {"name": "film", "queue": queue, "steps": steps}
    await client.define_workflow(spec)
    for given in (spec, "film"):
        a, b = await client.check_workflow(given, tenant="acme")
        assert (a.step, a.code, a.queue, a.placement) == ("a", "ready", queue, {})
        assert b.came_from == {"require": [["step"]]}
        assert (b.nodes_matching, b.permanent, b.reasons[0].code) == (0, True, "label_mismatch")
        assert (a.kind, a.workflow, a.version) == ("task", None, None)
    assert await client.list_workflow_runs() == []


async def test_a_signal_is_sent(client: AsyncClient, queue: str) -> None:
    steps = [{"name": "w", "kind": "wait", "signal": "go"}]
    run = (await client.submit_spec({"name": "film", "queue": queue, "steps": steps})).run_id
    [step] = await client.list_workflow_steps(run)
    assert (step.kind, step.task_name, step.headline) == ("wait", None, "waits for signal go")
    sent = await client.signal_workflow_run(run, "go", {"by": "ann"}, key="click-7")
    assert sent.created
    [step] = await client.list_workflow_steps(run)
    assert step.result == {"by": "ann"}
    with pytest.raises(WrongRunState):
        await client.signal_workflow_run(run, "go")
