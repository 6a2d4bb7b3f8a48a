"""Workflows, through both clients."""

import pytest

from hwqueue.client import AsyncClient
from hwqueue.errors import UniqueConflict
from hwqueue.types import Unique

STEPS = [
    {"name": "a", "task": "first", "params": {"n": {"$input": ["n"]}}},
    {"name": "b", "task": "second", "params": {"x": {"$result": "a", "default": None}}},
]


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
