"""Defaults of tasks, through both clients."""

from datetime import timedelta

from hwqueue import Placement
from hwqueue.app import App, TaskDefaults
from hwqueue.client import AsyncClient
from hwqueue.types import SyncedTask, TaskDifference

GPU = Placement().resources(gpu=1)


async def test_a_spawn_by_name_has_what_task_spawn_sends(client: AsyncClient, queue: str) -> None:
    """What Python knows of a task and sends wins over what the database knows of it."""
    await client.set_task("draw", TaskDefaults(placement=GPU, max_attempts=1, priority=7))

    @App().task("draw", queue=queue, max_attempts=3)
    async def draw() -> None: ...

    by_name = await client.spawn_lease(queue, "draw", priority=2)
    by_task = await draw.spawn(client)
    leases = [await client.get_lease(each.lease_id) for each in (by_name, by_task)]
    assert [each.placement for each in leases] == [{"resources": {"gpu": 1}}] * 2
    assert [(each.max_attempts, each.priority) for each in leases] == [(1, 2), (3, 7)]


async def test_declared_defaults_are_compared_with_those_that_were_set(client: AsyncClient) -> None:
    await client.set_task("draw", {"max_attempts": 3, "patience": timedelta(minutes=5)})
    declared = TaskDefaults(max_attempts=1, patience=timedelta(seconds=300), priority=2)
    found = await client.compare_tasks({"draw": declared, "other": {"priority": 1}})
    assert found == [
        TaskDifference(task="draw", option="max_attempts", declared=1, stored=3),
        TaskDifference(task="draw", option="priority", declared=2, stored=None),
        TaskDifference(task="other", option="priority", declared=1, stored=None),
    ]


async def test_what_an_app_declares_is_synced_unless_it_is_older(client: AsyncClient) -> None:
    old, new = TaskDefaults(max_attempts=1), TaskDefaults(max_attempts=2)
    assert await client.sync_tasks({"draw": new}, version="2.0") == [SyncedTask(task="draw", is_set=True)]
    assert await client.sync_tasks({"draw": old}, version="1.9") == [SyncedTask(task="draw", is_set=False)]
    assert await client.sync_tasks({"draw": new}) == []
    assert (await client.sync_tasks({"draw": old}, force=True))[0].is_set
