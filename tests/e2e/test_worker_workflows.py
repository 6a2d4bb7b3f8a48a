"""A worker goes on with a run whose steps it has settled, where another session held a row."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest

from hwqueue.client import AsyncClient
from hwqueue.errors import HwqueueError
from hwqueue.types import AdvanceResult, Claim
from hwqueue.worker.outcome import Ended
from hwqueue.worker.session import NodeSession
from tests.e2e.worker_support import BOUND_SECONDS, QUEUE, ended, until, worker

_TALLY = "select from hwqueue.tally where run_id = %s and step_no = %s for update"

pytestmark = pytest.mark.usefixtures("way")


@pytest.fixture
def advanced(monkeypatch: pytest.MonkeyPatch) -> list[AdvanceResult]:
    """What the calls of advance_workflows by workers answered."""
    answers: list[AdvanceResult] = []
    call = AsyncClient.advance_workflows

    async def noted(client: AsyncClient) -> AdvanceResult:
        answers.append(await call(client))
        return answers[-1]

    monkeypatch.setattr(AsyncClient, "advance_workflows", noted)
    return answers


def flow(name: str, *steps: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "queue": QUEUE, "steps": list(steps)}


def add(name: str, *after: str) -> dict[str, Any]:
    return {"name": name, "task": "add", "params": {"a": 1, "b": 2}, "after": list(after)}


async def lease_of(client: AsyncClient, run: UUID, step: str) -> UUID | None:
    [lease] = [row.lease_id for row in await client.list_workflow_steps(run) if row.step == step]
    return lease


async def test_a_join_whose_tally_was_held(
    client: AsyncClient, dsn: str, advanced: list[AdvanceResult]
) -> None:
    """Nobody reaps: what the settlements of its parents had to leave is found after another one."""
    join = flow("join", add("a"), add("b"), add("c", "a", "b"))
    run = (await client.submit_spec(join)).run_id
    with psycopg.connect(dsn) as holder:
        holder.execute(_TALLY, [run, 3])
        async with worker(dsn, reap_interval=None):
            await until(lambda: len(advanced) > 0)
            assert await lease_of(client, run, "c") is None
            holder.rollback()
            await client.submit_spec(flow("other", add("x")))
            await until(lambda: any(answer.released for answer in advanced))
            lease = await lease_of(client, run, "c")
            assert lease is not None
            assert (await ended(client, lease)).result == 3


async def test_other_leases_cost_no_call(
    client: AsyncClient, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether each settlement has asked for one."""
    asked: list[bool] = []
    call = NodeSession.settle_and_claim

    async def noted(session: NodeSession, ended: Sequence[Ended], quantity: int) -> Sequence[Claim]:
        claims = await call(session, ended, quantity)
        if ended:
            asked.append(session.steps_settled.is_set())
        return claims

    monkeypatch.setattr(NodeSession, "settle_and_claim", noted)
    plain = await client.spawn_lease(QUEUE, "add", {"a": 1, "b": 2}, headers={"trace": "1"})
    async with worker(dsn, reap_interval=None):
        await ended(client, plain.lease_id)
        await until(lambda: asked == [False])
        await client.submit_spec(flow("one", add("x")))
        await until(lambda: asked == [False, True])


async def test_a_refusal_ends_nothing(
    client: AsyncClient, dsn: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(_client: AsyncClient) -> AdvanceResult:
        raise HwqueueError("not now")

    monkeypatch.setattr(AsyncClient, "advance_workflows", refused)
    chain = flow("chain", add("a"), add("b", "a"))
    run = (await client.submit_spec(chain)).run_id
    async with worker(dsn, reap_interval=None):
        await until(lambda: caplog.text.count("advance_workflows was refused: not now") > 1)
        done = await client.wait_for_run(run, timeout=timedelta(seconds=BOUND_SECONDS))
        assert done.state == "completed"


@pytest.mark.parametrize("task", ["read-run", "read-run-async"])
async def test_a_handler_reads_its_run(client: AsyncClient, dsn: str, task: str) -> None:
    spec = flow("read", add("a"), {"name": "b", "task": task, "after": ["a"]})
    run = (await client.submit_spec(spec, {"n": 1})).run_id
    lease: UUID | None = None
    async with worker(dsn):
        while (lease := await lease_of(client, run, "b")) is None:
            await asyncio.sleep(0.01)
        read = await ended(client, lease)
    assert read.result == {"run": str(run), "step": "b", "input": {"n": 1}, "result": 3, "all": [[0, 3]]}


@pytest.mark.parametrize("task", ["add-items", "add-items-process", "add-items-async"])
async def test_a_handler_adds_items_to_its_step(client: AsyncClient, dsn: str, task: str) -> None:
    """Nobody reaps: the worker itself spawns what its handler has added."""
    run = (await client.submit_spec(flow("add", {"name": "a", "task": task}))).run_id
    async with worker(dsn, reap_interval=None):
        done = await client.wait_for_run(run, timeout=timedelta(seconds=BOUND_SECONDS))
        assert done.state == "completed"
    [step] = await client.list_workflow_steps(run)
    assert (step.result, step.items, step.items_done) == ([0, 1, 2], 3, 3)
    found = await client.step_results(run, "a")
    assert [(each.name, each.result) for each in found] == [("i0", 0), ("i1", 2), ("i2", 4)]


async def test_outside_of_runs_there_is_nothing_to_read(client: AsyncClient, dsn: str) -> None:
    lease = (await client.spawn_lease(QUEUE, "read-no-run")).lease_id
    async with worker(dsn):
        [*facts, said] = (await ended(client, lease)).result
    assert facts == [None, None, None]
    assert "is no step of a run" in said
