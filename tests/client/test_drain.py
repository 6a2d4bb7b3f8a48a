"""`drain`, `run_one` and `inline`: handlers of an app, run in the test's process."""

from __future__ import annotations

import asyncio
import threading
from datetime import date, timedelta
from typing import Any
from uuid import uuid4

import psycopg
import pytest

from hwqueue import App, Depends, Retry, Snooze
from hwqueue.app import BadParams
from hwqueue.client import AsyncClient, Client
from hwqueue.handler.context import AsyncLeaseContext, LeaseContext
from hwqueue.testing import Fleet, create_queues, drain, inline, run_one
from hwqueue.types import LeaseSpec, LeaseState, NodeSpec, RetryPolicy
from tests.client.conftest import producer

pytestmark = pytest.mark.thorough

GPU = {"resources": {"gpu": 2}, "require": [{"tags": {"zone": "a"}}]}


client = producer


class Boom(Exception):
    """What the handler `boom` raises."""


@pytest.fixture
def app(client: Client) -> App:
    """Handlers for what a test may want; their queues are there."""
    app = App()

    @app.task("add", queue="work")
    def add(params: Any) -> Any:
        return params["a"] + params["b"]

    @app.task("train", queue="gpu", placement=GPU)
    async def train(params: Any, context: AsyncLeaseContext) -> Any:
        await asyncio.sleep(0)
        assert context.assignment is not None
        return len(context.assignment.gpus)

    @app.task("flaky", queue="work")
    def flaky(params: Any, context: LeaseContext) -> Any:
        if context.attempt < params["until"]:
            raise Retry(after=timedelta(hours=1))
        return context.attempt

    @app.task("boom", queue="work", max_attempts=2)
    def boom(params: Any) -> None:
        raise Boom(params)

    @app.task("where", queue="work")
    def where(params: Any, context: LeaseContext) -> Any:
        context.extend(timedelta(hours=1))
        return threading.get_ident()

    @app.task("chain", queue="work")
    def chain(params: Any) -> Any:
        if params["left"]:
            chain.spawn(client, {"left": params["left"] - 1})
        return params["left"]

    create_queues(client, app)
    return app


def test_all_that_is_due_runs_until_nothing_is_left(client: Client, app: App) -> None:
    add = app.tasks["add"].spawn(client, {"a": 1, "b": 2}).lease_id
    app.tasks["chain"].spawn(client, {"left": 2})
    later = app.tasks["add"].spawn(client, {"a": 0, "b": 0}, delay=timedelta(hours=1)).lease_id
    client.spawn_lease("work", "elsewhere")
    done = drain(client, app)
    assert done.results == [3, 2, 1, 0]
    assert [run.claim.task_name for run in done] == ["add", "chain", "chain", "chain"]
    assert client.get_lease(add).result == 3
    assert client.get_lease(later).state is LeaseState.SCHEDULED
    assert drain(client, app).results == []
    assert drain(client, app, scheduled=True).results == [0]
    assert client.list_nodes() == []
    app.tasks["where"].spawn(client)
    assert drain(client, app).results == [threading.get_ident()]


@pytest.mark.parametrize(
    "placement",
    [
        {"require": [{"label": "n", "op": "gt", "values": [3]}]},
        {"require": [{"label": "n", "op": "lt", "values": [3]}]},
        {"require": [{"label": "n", "op": "exists"}]},
        {"require": [{"label": "a", "op": "in", "other_label": "b"}]},
        {"require": [{"label": "a", "op": "gt", "other_label": "b"}]},
        {"require": [{"label": "a", "op": "not_in", "values": ["x"]}]},
        {"require": [{"label": "a", "op": "contains_all", "values": ["x", "y"]}]},
        {"require": [{"label": "a", "op": "contains_any", "values": ["x", "y"]}]},
        {"require": [{"any": [[{"tags": {"a": {"b": 1}}}, {"rack": [7, 8]}], [{"tags": {"c": 1}}]]}]},
        {"require": [{"node": "00000000-0000-0000-0000-00000000000a"}]},
        {"require": [{"resource": "00000000-0000-0000-0000-00000000000b"}]},
        {"require": [{"rack": 7, "away": True}]},
        {"resources": {"cpu_milli": 2000, "memory_mib": 10, "license": 2}},
        {"resources": {"gpu_milli": 500}},
        {"isolation": {"cpu": "whole_core", "gpu": "device_exclusive"}},
        {"prefer": [{"weight": 50, "when": {"tags": {"zone": "a"}}}]},
        {"spread": [{"domain": "node", "max_per_domain": 1, "select": {"labels": {}}}]},
    ],
)
def test_what_can_be_made_up(client: Client, app: App, placement: dict[str, Any]) -> None:
    # a live node that suits better must not make the made-up one wait for it
    Fleet(client).add("real", labels={"zone": "a"}, cpu_milli=10)
    for _ in range(2):
        app.tasks["add"].spawn(client, {"a": 1, "b": 1}, placement=placement)
    assert drain(client, app).results == [2, 2]


def test_open_transactions_of_others_delay_a_claim(
    client: Client, app: App, dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Affinity terms are published behind them; a drain waits for that."""
    with psycopg.connect(dsn) as other:
        other.execute("select pg_current_xact_id()")
        monkeypatch.setattr("hwqueue.testing.either.time.sleep", lambda _: other.commit())
        apart = {"spread": [{"domain": "node", "max_per_domain": 1, "select": {"labels": {}}}]}
        app.tasks["add"].spawn(client, {"a": 1, "b": 1}, placement=apart)
        assert drain(client, app).results == [2]


def test_what_no_made_up_node_may_run_is_told(client: Client, app: App) -> None:
    spawned = app.tasks["add"].spawn(client, {"a": 1, "b": 1}, placement={"require": [{"trust": "tee"}]})
    with pytest.raises(AssertionError, match=r"no made-up node may run lease .* of task 'add'"):
        drain(client, app)
    with pytest.raises(AssertionError, match="no made-up node may run"):
        run_one(client, app, lease_id=spawned.lease_id)


def test_a_node_of_the_tests_own(client: Client, app: App) -> None:
    fleet = Fleet(client)
    small = fleet.add("small", labels={"zone": "a"})
    big = fleet.add("big", labels={"zone": "a"}, gpus=2, gpu_model="A100")
    assert fleet.matching(app.tasks["train"].defaults.placement, queue="gpu") == {"big"}
    assert (fleet["big"], len(fleet), small.name) == (big, 2, "small")
    app.tasks["train"].spawn(client)
    assert drain(client, app, node=small).runs == ()
    assert fleet.claim("small", "gpu") is None
    assert drain(client, app, node=big).results == [2]
    app.tasks["train"].spawn(client)
    assert fleet.claim("big", "gpu") is not None
    assert {node.name for node in client.list_nodes()} == {"small", "big"}
    app.tasks["add"].spawn(client, {"a": 1, "b": 1})
    own = NodeSpec(name="own", instance_id="i")
    assert drain(client, app, node=own).results == [2]


def test_all_nodes_of_a_fleet_claim_in_turn(client: Client, app: App) -> None:
    fleet = Fleet(client)
    with pytest.raises(AssertionError, match="the fleet has no nodes"):
        drain(client, app, node=fleet)
    fleet.add("small")
    fleet.add("big", gpus=2, labels={"zone": "a"})
    assert [node.name for node in fleet.nodes] == ["small", "big"]
    app.tasks["train"].spawn(client)
    app.tasks["add"].spawn(client, {"a": 1, "b": 1})
    unmet = app.tasks["train"].spawn(client, placement={"resources": {"gpu": 3}})
    drained = drain(client, app, node=fleet)
    assert {run.claim.task_name: run.node.name for run in drained} == {"add": "small", "train": "big"}
    assert client.get_lease(unmet.lease_id).state is LeaseState.PENDING
    assert {node.name for node in client.list_nodes()} == {"small", "big"}
    last = app.tasks["train"].spawn(client)
    assert run_one(client, app, node=fleet, lease_id=last.lease_id).node.name == "big"
    for number in range(3):
        app.tasks["add"].spawn(client, {"a": number, "b": 1})
    drained = drain(client, app, node=fleet)
    assert [(run.node.name, run.result) for run in drained] == [
        ("small", 1), ("big", 2), ("small", 3),
    ]  # fmt: skip


def test_what_a_handler_raises_comes_out_or_is_collected(client: Client, app: App) -> None:
    lease = app.tasks["boom"].spawn(client, {"n": 1}).lease_id
    with pytest.raises(Boom):
        drain(client, app)
    found = client.get_lease(lease)
    assert (found.state, found.attempt) == (LeaseState.SCHEDULED, 1)
    assert found.attempts[0].error["type"].endswith("Boom")
    assert drain(client, app).runs == ()
    app.tasks["boom"].spawn(client)
    app.tasks["add"].spawn(client, {"a": 1, "b": 2})
    done = drain(client, app, raises=False)
    assert (len(done), done.results, len(done.completed)) == (2, [3], 1)
    (failed,) = done.failed
    assert isinstance(failed.exception, Boom)
    assert failed.state is LeaseState.SCHEDULED
    assert "attempt 1: scheduled" in str(failed)


def test_retries_run_until_the_lease_ends(client: Client, app: App) -> None:
    policy = RetryPolicy(kind="fixed", base=timedelta(hours=1))
    app.tasks["flaky"].spawn(client, {"until": 3})
    later = app.tasks["add"].spawn(client, {"a": 0, "b": 0}, delay=timedelta(hours=1)).lease_id
    done = drain(client, app, retries=True)
    assert [run.claim.attempt for run in done] == [1, 2, 3]
    assert done.results == [3]
    boom = app.tasks["boom"].spawn(client, retry=policy).lease_id
    with pytest.raises(Boom):
        drain(client, app, retries=True)
    assert client.get_lease(boom).state is LeaseState.FAILED
    assert client.get_lease(later).state is LeaseState.SCHEDULED


def test_what_never_ends_is_stopped_and_so_does_ctrl_c(client: Client, app: App) -> None:
    app.tasks["chain"].spawn(client, {"left": 100})
    with pytest.raises(AssertionError, match="3 handlers have run and there is more"):
        drain(client, app, limit=3)
    assert run_one(client, app).result == 97

    @app.task("interrupted", queue="work", priority=5)
    def interrupted(params: Any) -> None:
        raise KeyboardInterrupt

    interrupted.spawn(client)
    with pytest.raises(KeyboardInterrupt):
        drain(client, app, raises=False)
    assert client.list_nodes() == []


def test_one_lease_of_many(client: Client, app: App) -> None:
    with pytest.raises(AssertionError, match="nothing to run in 'gpu', 'work'"):
        run_one(client, app)
    first, second = (app.tasks["add"].spawn(client, {"a": n, "b": 0}).lease_id for n in (1, 2))
    later = app.tasks["add"].spawn(client, {"a": 3, "b": 0}, delay=timedelta(hours=1)).lease_id
    assert run_one(client, app, lease_id=second).result == 2
    assert run_one(client, app, lease_id=later).result == 3
    assert client.get_lease(first).attempt == 0
    assert run_one(client, app, queue="work").claim.lease_id == first
    with pytest.raises(AssertionError, match="is completed, it does not wait"):
        run_one(client, app, lease_id=first)
    other = client.spawn_lease("work", "unknown").lease_id
    with pytest.raises(AssertionError, match="the app has no task 'unknown'"):
        run_one(client, app, lease_id=other)


async def test_the_same_of_an_async_client(dsn: str, client: Client, app: App) -> None:
    async with AsyncClient(dsn) as aclient:
        await app.tasks["add"].spawn(aclient, {"a": 1, "b": 2})
        await app.tasks["train"].spawn(aclient)
        assert sorted((await drain(aclient, app)).results) == [2, 3]
        await app.tasks["where"].spawn(aclient)
        assert (await run_one(aclient, app)).result != threading.get_ident()
        await app.tasks["boom"].spawn(aclient)
        with pytest.raises(Boom):
            await run_one(aclient, app)
        await create_queues(aclient, app)
    app.tasks["train"].spawn(client)  # the sync one in an event loop
    assert drain(client, app, queue="gpu").results == [2]


def test_spawns_run_inline(client: Client, app: App) -> None:
    waiting = app.tasks["add"].spawn(client, {"a": 9, "b": 9}).lease_id
    with inline(app):
        spawned = app.tasks["add"].spawn(client, {"a": 1, "b": 2})
        assert (spawned.created, spawned.state) == (True, LeaseState.PENDING)
        assert client.get_lease(spawned.lease_id).result == 3
        late = app.tasks["chain"].spawn(client, {"left": 2}, delay=timedelta(hours=1))
        assert client.get_lease(late.lease_id).result == 2
        batch = client.spawn_leases("work", [LeaseSpec(task="add", params={"a": 1, "b": n}) for n in (1, 2)])
        assert [client.get_lease(one.lease_id).result for one in batch] == [2, 3]
        other = client.spawn_lease("work", "elsewhere")
        assert client.get_lease(other.lease_id).state is LeaseState.PENDING
        keyed = {"a": 1, "b": 2}
        again = [app.tasks["add"].spawn(client, keyed, idempotency_key="k") for _ in range(2)]
        assert [one.created for one in again] == [True, False]
        gpu = app.tasks["train"].spawn(client)
        assert client.get_lease(gpu.lease_id).result == 2
        many = app.tasks["add"].spawn_many(client, [{"a": 1, "b": 2}, {"a": 2, "b": 2}])
        assert [client.get_lease(one.lease_id).result for one in many] == [3, 4]
    assert client.get_lease(waiting).state is LeaseState.PENDING
    after = app.tasks["add"].spawn(client, {"a": 1, "b": 2})
    assert client.get_lease(after.lease_id).state is LeaseState.PENDING
    assert "spawn_lease" not in vars(Client)


def test_what_fails_inline(client: Client, app: App) -> None:
    with inline(app), pytest.raises(Boom):
        app.tasks["boom"].spawn(client)
    with inline(app, raises=False):
        spawned = app.tasks["boom"].spawn(client)
    assert client.get_lease(spawned.lease_id).state is LeaseState.SCHEDULED


async def test_async_spawns_run_inline(dsn: str, client: Client, app: App) -> None:
    async with AsyncClient(dsn) as aclient:
        with inline(app):
            spawned = await app.tasks["train"].spawn(aclient)
            add = LeaseSpec(task="add", params={"a": 1, "b": 2})
            (one,) = await aclient.spawn_leases("work", [add])
        assert (await aclient.get_lease(spawned.lease_id)).result == 2
        assert (await aclient.get_lease(one.lease_id)).result == 3


def test_in_a_transaction_that_is_rolled_back(dsn: str, client: Client, app: App) -> None:
    with psycopg.connect(dsn) as connection:
        mine = Client.on(connection)
        app.tasks["add"].spawn(mine, {"a": 1, "b": 2})
        app.tasks["train"].spawn(mine)
        assert sorted(drain(mine, app).results) == [2, 3]
        with inline(app):
            spawned = app.tasks["add"].spawn(mine, {"a": 2, "b": 2})
        assert mine.get_lease(spawned.lease_id).result == 4
        connection.rollback()
    assert client.list_leases() == []
    assert client.list_nodes() == []


def test_arguments_are_converted_as_in_a_worker(client: Client, app: App) -> None:

    def opened(context: LeaseContext) -> int:
        return context.attempt

    @app.task("typed", queue="work", no_retry_on=LookupError)
    def typed(at: date, attempt: int = Depends(opened)) -> date:
        if at.year < 2000:
            raise LookupError(at)
        return at + timedelta(days=attempt)

    typed.spawn(client, at=date(2030, 1, 1))
    assert drain(client, app).results == ["2030-01-02"]
    client.spawn_lease("work", "typed", {"at": "no date"})
    typed.spawn(client, at=date(1999, 1, 1))
    bad, old = drain(client, app, raises=False)
    assert (bad.state, isinstance(bad.exception, BadParams)) == (LeaseState.FAILED, True)
    assert (old.state, isinstance(old.exception, LookupError)) == (LeaseState.FAILED, True)
    client.spawn_lease("work", "typed", {})
    with pytest.raises(BadParams):
        drain(client, app)


def test_middleware_and_snoozes_are_those_of_a_worker(client: Client, app: App) -> None:

    @app.middleware
    def doubled(call_next: Any, context: LeaseContext) -> Any:
        return 2 * call_next(context)

    @app.task("sleepy", queue="work")
    def sleepy(params: Any) -> None:
        raise Snooze(after=timedelta(hours=1))

    app.tasks["add"].spawn(client, {"a": 1, "b": 2})
    sleepy.spawn(client)
    added, snoozed = drain(client, app)
    assert (added.result, snoozed.state) == (6, LeaseState.SCHEDULED)
    with pytest.raises(AssertionError, match="5 handlers have run"):
        drain(client, app, scheduled=True, limit=5)


def test_a_run_of_a_workflow_is_drained_to_its_end(client: Client, app: App) -> None:
    both = {"a": {"$result": "one"}, "b": {"$result": "two"}}
    steps = [
        {"name": "one", "task": "add", "params": {"a": 1, "b": 2}},
        {"name": "two", "task": "add", "params": {"a": 3, "b": 4}},
        {"name": "sum", "task": "add", "params": both},
        {"name": "gpus", "task": "train", "queue": "gpu", "after": "sum", "placement": GPU},
    ]
    spec = {"name": "sums", "queue": "work", "steps": steps, "result": {"$result": "sum"}}
    run = client.submit_spec(spec).run_id
    assert drain(client, app).results == [3, 7, 10, 2]
    found = client.wait_for_run(run, timeout=timedelta(0))
    assert (found.state, found.result) == ("completed", 10)


def test_a_step_that_a_settlement_has_left_is_drained(client: Client, app: App, dsn: str) -> None:
    """Two parents of a join are settled at once: neither session releases the child."""
    steps = [
        {"name": name, "task": "add", "params": {"a": 1, "b": 2}, "after": list(after)}
        for name, after in (("a", ""), ("b", ""), ("c", "ab"))
    ]
    run = client.submit_spec({"name": "join", "queue": "work", "steps": steps}).run_id
    node = uuid4()
    epoch = client.register_node(node, NodeSpec(name="n", instance_id="1"))
    first, second = client.claim_task(["work"], node, epoch, qty=2)
    with psycopg.connect(dsn) as connection:
        Client.on(connection).complete_lease(first.lease_id, first.claim_token)
        client.complete_lease(second.lease_id, second.claim_token)
    assert drain(client, app).results == [3]
    assert client.get_workflow_run(run).state == "completed"
