"""Spawn leases and follow them, one by one and in bulk; defaults of tasks."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from hwqueue import errors
from hwqueue.app import App, TaskDefaults
from hwqueue.client import AsyncClient, _json, _spawn
from hwqueue.errors import BadArgument
from hwqueue.placement import Placement, label, tags
from hwqueue.types import (
    BulkPage,
    LeaseSpec,
    LeaseState,
    NodeSpec,
    QueuePolicy,
    RetryPolicy,
    SyncedTask,
    TaskDifference,
    Unique,
)


async def test_a_lease_comes_back_as_it_was_spawned(client: AsyncClient, queue: str) -> None:
    service, deadline = uuid4(), datetime.now(UTC) + timedelta(days=1)
    params = {"text": "ü😀", "n": [1, 2.5, None, True], "big": 10**30}
    spawned = await client.spawn_lease(
        queue,
        "render",
        params,
        placement=Placement().require(label("zone") == "a").resources(cpu_milli=500),
        affinity_tags={"gpu": True},
        priority=-3,
        tenant="t1",
        service_id=service,
        labels={"app": "x"},
        max_attempts=2,
        retry=RetryPolicy(kind="fixed", base=timedelta(seconds=9)),
        claim_timeout=timedelta(seconds=30),
        deadline=deadline,
        idempotency_key="k",
        headers={"trace": "1"},
    )
    assert (spawned.created, spawned.state) == (True, LeaseState.PENDING)
    lease = await client.get_lease(spawned.lease_id)
    assert lease.params == params
    assert (lease.queue, lease.task_name, lease.state) == (queue, "render", "pending")
    assert (lease.priority, lease.tenant, lease.service_id) == (-3, "t1", service)
    assert (lease.labels, lease.headers) == ({"app": "x"}, {"trace": "1"})
    assert (lease.attempt, lease.max_attempts, lease.attempts) == (0, 2, ())
    assert (lease.deadline, lease.idempotency_key) == (deadline, "k")
    assert lease.placement["resources"] == {"cpu_milli": 500}
    assert len(lease.placement["require"]) == 2


@pytest.mark.thorough
async def test_a_span_without_a_unit_is_refused(client: AsyncClient, queue: str) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"delay": 5}, "options.delay"),
        ({"patience": 0.5}, "options.patience"),
        ({"claim_timeout": 5}, "options.claim_timeout"),
        ({"retry": RetryPolicy(base=5)}, "options.retry"),  # type: ignore[arg-type]
        ({"unique": Unique(key="k", hold=5)}, "options.unique"),  # type: ignore[arg-type]
    ]
    for options, field in wrong:
        with pytest.raises(errors.BadArgument, match=r"timedelta\(seconds=") as caught:
            await client.spawn_lease(queue, "t", **options)
        assert caught.value.field == field
        with pytest.raises(errors.BadArgument, match=r"timedelta\(seconds="):
            await client.spawn_leases(queue, [LeaseSpec(task="t", options=options)])
    assert await client.list_leases(queue=queue) == []


async def test_a_mapping_is_json_where_spans_are_seconds(client: AsyncClient, queue: str) -> None:
    await client.spawn_leases(queue, [{"task": "t", "options": {"delay": 60}}])
    [lease] = await client.list_leases(queue=queue)
    assert lease.state == LeaseState.SCHEDULED
    with pytest.raises(errors.BadArgument, match="must be a timedelta"):
        await client.set_queue_policy(queue, QueuePolicy(claim_timeout=5))  # type: ignore[arg-type]
    await client.set_queue_policy(queue, {"claim_timeout": 5})


async def test_a_batch_keeps_its_order_and_a_bad_element_undoes_it(client: AsyncClient, queue: str) -> None:
    batch: list[LeaseSpec | dict[str, Any]] = [
        LeaseSpec(task="a", params={"n": 0}),
        {"task": "b", "options": {"priority": 1 << 20}},
        LeaseSpec(task="c", options={"placement": Placement().require(tags(x=1)), "priority": 2}),
    ]
    with pytest.raises(errors.BadArgument) as caught:
        await client.spawn_leases(queue, batch)
    assert (caught.value.detail["index"], caught.value.field) == (1, "options.priority")
    assert await client.list_leases(queue=queue) == []
    batch[1] = {"task": "b", "params": {"n": 1}, "options": {"delay": timedelta(hours=1)}}
    spawned = await client.spawn_leases(queue, batch)
    assert [lease.state for lease in spawned] == ["pending", "scheduled", "pending"]
    leases = [await client.get_lease(lease.lease_id) for lease in spawned]
    said = [(lease.task_name, lease.params) for lease in leases]
    assert said == [("a", {"n": 0}), ("b", {"n": 1}), ("c", {})]
    assert await client.spawn_leases(queue, []) == []


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What each call of spawn_leases was given, of which none takes more than 20, or 4000 bytes."""
    monkeypatch.setattr(_spawn, "BATCH", 20)
    monkeypatch.setattr(_json, "MAX_BYTES", 4000)
    seen: list[Any] = []
    compact = _spawn.spawn_batch

    def noted(items: Any) -> Any:
        seen.append(compact(items))
        return seen[-1]

    monkeypatch.setattr(_spawn, "spawn_batch", noted)
    return seen


@pytest.mark.parametrize("actor", [None, "ada"])
async def test_many_go_in_several_calls_in_one_transaction(
    client: AsyncClient, queue: str, batches: list[Any], dsn: str, actor: str | None
) -> None:
    """Also as kinds with the params of each; in the order given, and all or nothing."""
    acting = client if actor is None else client.acting_as(actor)
    many = [LeaseSpec(task=f"t{n % 2}", params={"n": n}, options={"priority": n % 2}) for n in range(60)]
    spawned = await acting.spawn_leases(queue, many)
    assert [batch["of"] for batch in batches] == [[0, 1] * 10] * 3
    async with await psycopg.AsyncConnection.connect(dsn, autocommit=True) as conn:
        cursor = await conn.execute(
            "select l.lease_id, l.task_name, l.priority, l.params, count(*) over (partition by l.xmin::text)"
            " from hwqueue.lease l order by l.position"
        )
        rows = await cursor.fetchall()
    assert rows == [
        (one.lease_id, each.task, each.options["priority"], each.params, 60)
        for one, each in zip(spawned, many, strict=True)
    ]
    for bad in ("x", object()):  # the server refuses it, or the client
        many[41] = LeaseSpec(task="t1", options={"priority": bad})
        with pytest.raises(BadArgument, match=r"leases\[41\]"):
            await acting.spawn_leases(queue, many)
    refused = LeaseSpec(task="t", params={"long": 100 * "x"}, options={"priority": "x"})
    with pytest.raises(BadArgument, match="priority"):  # and not the size of all together
        await acting.spawn_leases(queue, [refused] * 60)
    assert len(await client.list_leases(queue=queue, limit=1000)) == 60


async def test_what_may_share_a_key_goes_in_one_call(
    client: AsyncClient, queue: str, batches: list[Any]
) -> None:
    many = [LeaseSpec(task="t", options={"idempotency_key": f"k{n % 25}"}) for n in range(50)]
    spawned = await client.spawn_leases(queue, many)
    assert [len(batch) for batch in batches] == [50]
    assert len({one.lease_id for one in spawned}) == 25


async def test_a_params_blob_is_bytes_or_text(client: AsyncClient, queue: str) -> None:
    blob = bytes.fromhex("0910000903010600040000002a")
    for wire in (blob, f"\\x{blob.hex()}", "CRAACQMBBgAEAAAAKg=="):
        spawned = await client.spawn_lease(queue, "t", wire=wire)
        [batched] = await client.spawn_leases(queue, [LeaseSpec(task="t", options={"wire": wire})])
        for lease_id in (spawned.lease_id, batched.lease_id):
            lease = await client.get_lease(lease_id)
            assert (lease.wire, lease.placement) == (blob, {"require": [{"rack": [42]}]})
    await client.update_lease(spawned.lease_id, wire=blob * 2)
    assert (await client.get_lease(spawned.lease_id)).wire == blob * 2
    await client.update_lease(spawned.lease_id, wire=None)
    lease = await client.get_lease(spawned.lease_id)
    assert (lease.wire, lease.placement) == (None, {})
    with pytest.raises(errors.WireInvalid) as caught:
        await client.spawn_lease(queue, "t", wire=blob[:-1])
    assert (caught.value.reason, caught.value.offset) == ("truncated_tlv_value", 2)
    assert caught.value.field == "options.wire"
    with pytest.raises(errors.BadArgument) as refused:
        await client.spawn_lease(queue, "t", tenant=b"acme")  # type: ignore[arg-type]
    assert refused.value.field == "options.tenant"


async def test_what_a_spawn_lacks_is_logged_once_for_its_kind(
    client: AsyncClient, queue: str, caplog: pytest.LogCaptureFixture
) -> None:
    task = f"task-{uuid4()}"
    await client.register_node(uuid4(), NodeSpec(name="n", instance_id="1", tasks=["other"]))
    first = await client.spawn_lease(queue, task)
    assert first.warnings is None
    said = f'no live node has a handler for task "{task}"'
    assert await client.spawn_warnings(first.lease_id) == [said]
    await client.reap()
    for _ in range(2):
        known = (await client.spawn_lease(queue, task)).warnings
        assert known == (
            f'no live node could run it at the last look: none serves task "{task}" in this queue',
        )
    [batched] = await client.spawn_leases(queue, [{"task": task}])
    assert batched.warnings is None
    told = [one for one in caplog.records if one.name == "hwqueue.spawn" and task in one.message]
    assert [one.levelname for one in told] == ["WARNING"]


async def test_all_pages(client: AsyncClient, queue: str) -> None:
    films = ["7", "8", "7", "7", "8"]
    specs = [LeaseSpec(task="t", options={"labels": {"film": film}}) for film in films]
    await client.spawn_leases(queue, specs)
    pages: list[BulkPage] = []
    assert await client.count_leases(queue, page_size=2) == 5
    assert await client.count_leases(queue, page_size=2, labels={"film": "7"}) == 3
    assert await client.count_leases(queue, states=["claimed"]) == 0
    changed = await client.update_leases(queue, {"priority": 5}, labels={"film": "8"}, page_size=2)
    assert (changed.changed, changed.skipped) == (2, ())
    found = await client.cancel_leases(
        queue, reason="why", labels={"film": "7"}, page_size=2, on_progress=pages.append
    )
    assert found.changed == sum(len(page.changed) for page in pages) == 3
    assert len(pages) >= 3
    cancelled = await client.list_leases(queue=queue, state=LeaseState.CANCELLED)
    assert {lease.labels["film"] for lease in cancelled} == {"7"}
    again = await client.requeue_leases(queue, state=LeaseState.CANCELLED)
    assert again.changed == 3
    await client.cancel_leases(queue)
    assert (await client.delete_leases(queue)).changed == 5
    with pytest.raises(BadArgument, match="only update"):
        await client.change_page("cancel", queue, changes={"priority": 3})
    with pytest.raises(BadArgument, match="only cancel"):
        await client.change_page("delete", queue, reason="why")
    assert await client.list_leases(queue=queue) == []


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
