"""Durable steps in the test kit, and the methods of the clients behind them."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from hwqueue import App, Cancelled, Reject, Retry, Retrying, Snooze, Suspended
from hwqueue.client import AsyncClient, Client
from hwqueue.errors import BadArgument, ConfigError, LeaseLost
from hwqueue.handler.context import AsyncLeaseContext, LeaseContext
from hwqueue.testing import claim_one, drain, inline, make_async_context, make_claim, make_context, run_one
from hwqueue.types import LeaseState
from tests.client.conftest import producer

HOUR = timedelta(hours=1)
QUEUE = "work"

client = producer


def make_app(calls: list[str]) -> App:
    """Handlers that sleep, wait, and write down what they do."""
    app = App()

    @app.task("order", queue=QUEUE)
    def order(context: LeaseContext) -> Any:
        context.step("charge", calls.append, "charge")
        context.sleep(HOUR)
        try:
            return context.wait_for("packed", timeout=HOUR)
        except TimeoutError:
            return "late"

    @app.task("ask", queue=QUEUE)
    async def ask(context: AsyncLeaseContext) -> Any:
        async def double(number: int) -> int:
            await asyncio.sleep(0)
            return 2 * number

        doubled = [await context.step("double", double, number) for number in (1, 2)]
        return [*doubled, await context.wait_for("answer")]

    return app


def test_one_run_at_a_time(client: Client) -> None:
    calls: list[str] = []
    app = make_app(calls)
    lease_id = app.tasks["order"].spawn(client).lease_id
    run = run_one(client, app, queue=QUEUE)
    assert (run.outcome.kind, run.state, run.exception) == ("suspend", LeaseState.SCHEDULED, None)
    run = run_one(client, app, lease_id=lease_id)
    assert run.outcome.signal == "packed", "the sleep is over"
    assert client.signal_lease(lease_id, "packed", 7).state is LeaseState.PENDING
    assert run_one(client, app, queue=QUEUE).result == 7
    assert calls == ["charge"]


def test_code_that_changed_between_two_attempts_goes_on(client: Client) -> None:
    """A deployment: steps are known by their names, and others may come before and between them."""
    calls: list[str] = []

    def app_of(*steps: str, fails: bool) -> App:
        app = App()

        @app.task("order", queue=QUEUE, max_attempts=3)
        def order(context: LeaseContext) -> str:
            for name in steps:
                context.step(name, calls.append, name)
            if fails:
                raise RuntimeError("the old code is broken here")
            return "shipped"

        return app

    old = app_of("charge", "pack", fails=True)
    lease_id = old.tasks["order"].spawn(client).lease_id
    assert run_one(client, old, lease_id=lease_id, raises=False).exception is not None
    run = run_one(client, app_of("check", "pack", "tell", "charge", fails=False), lease_id=lease_id)
    assert run.result == "shipped"
    assert calls == ["charge", "pack", "check", "tell"]


def test_what_a_step_spawned_is_not_spawned_again(client: Client) -> None:
    app = App()

    @app.task("child", queue="children")
    def child() -> None: ...

    @app.task("order", queue=QUEUE, max_attempts=3)
    def order(context: LeaseContext) -> None:
        context.step("child", lambda: str(child.spawn(client).lease_id))
        if context.claim.attempt == 1:
            raise RuntimeError("after its child was spawned")

    client.create_queue("children")
    lease_id = app.tasks["order"].spawn(client).lease_id
    assert run_one(client, app, lease_id=lease_id, raises=False).exception is not None
    run_one(client, app, lease_id=lease_id)
    assert len(client.list_leases(queue="children")) == 1


def test_a_drain_skips_the_time_of_waits(client: Client) -> None:
    calls: list[str] = []
    app = make_app(calls)
    app.tasks["order"].spawn(client)
    runs = drain(client, app, queue=QUEUE, scheduled=True)
    assert [run.outcome.kind for run in runs] == ["suspend", "suspend", "complete"]
    assert runs.results == ["late"]
    assert calls == ["charge"]


def test_a_drain_leaves_what_waits_for_a_signal(client: Client) -> None:
    app = make_app([])
    lease_id = app.tasks["ask"].spawn(client).lease_id
    assert len(drain(client, app, queue=QUEUE, scheduled=True)) == 1
    client.signal_lease(lease_id, "answer", "yes")
    assert drain(client, app, queue=QUEUE).results == [[2, 4, "yes"]]
    names = [one.name for one in client.lease_checkpoints(lease_id)]
    assert sorted(names) == ["answer", "double", "double#2"]


def test_inline_makes_one_run(client: Client) -> None:
    app = make_app([])
    with inline(app):
        spawned = app.tasks["ask"].spawn(client)
    assert client.get_lease(spawned.lease_id).state is LeaseState.SCHEDULED
    assert client.lease_checkpoints(spawned.lease_id)[0].is_suspended


async def test_a_handler_is_called_with_what_it_has_saved() -> None:
    calls: list[str] = []
    tasks = make_app(calls).tasks
    order = tasks["order"].handler
    with pytest.raises(Suspended, match="sleeps as 'sleep'"):
        order(make_context())
    with pytest.raises(Suspended, match="waits for signal 'packed'"):
        order(make_context(saved={"charge": None, "sleep": None}))
    context = make_context(saved={"charge": None, "sleep": None}, signals={"packed": 7})
    assert order(context) == 7
    assert calls == ["charge"]
    assert await tasks["ask"].handler(make_async_context(signals={"answer": 1})) == [2, 4, 1]
    # a result is the same in each run
    assert make_context().step("pair", lambda: (1, (2, HOUR))) == [1, [2, 3600.0]]


def test_what_cannot_be_a_name_or_kept_or_waited() -> None:
    names: list[Any] = ["", "a#2", "x" * 191, 7]
    for name in names:
        with pytest.raises(BadArgument, match="name of a step"):
            make_context().step(name, str)
    with pytest.raises(BadArgument, match="result of step 'odd'"):
        make_context().step("odd", object)

    async def late() -> None:
        raise AssertionError

    with pytest.raises(ConfigError, match="step 'late' is async"):
        make_context().step("late", late)
    spans: list[Any] = [5, timedelta(days=3651)]
    for span in spans:
        with pytest.raises(BadArgument):
            make_context().sleep(span)
        with pytest.raises(BadArgument):
            make_context().wait_for("packed", timeout=span)


async def test_waits_of_a_task_group_suspend(client: Client, dsn: str) -> None:
    app = App()

    @app.task("both", queue=QUEUE)
    async def both(context: AsyncLeaseContext) -> Any:
        async with asyncio.TaskGroup() as group:
            waits = [group.create_task(context.wait_for(name)) for name in ("a", "b")]
        return [wait.result() for wait in waits]

    lease_id = both.spawn(client).lease_id
    async with AsyncClient(dsn) as aclient:
        run = await run_one(aclient, app, queue=QUEUE)
        assert run.outcome.kind == "suspend"
        assert run.outcome.signal in {"a", "b"}, "which of them asked first"
        for name in ("a", "b"):
            await aclient.signal_lease(lease_id, name, name)
        assert (await run_one(aclient, app, queue=QUEUE)).result == ["a", "b"]


def test_only_a_lease_that_was_claimed_before_is_asked_for() -> None:
    first, second = (LeaseContext(claim=make_claim(claim_token=2**40 + odd)) for odd in (0, 1))
    with pytest.raises(Suspended):
        first.sleep(HOUR)
    with pytest.raises(ConfigError, match="checkpoints is not possible here"):
        second.sleep(HOUR)


async def test_the_clients_say_the_same(client: Client, dsn: str) -> None:
    lease_id = client.spawn_lease(QUEUE, "draw").lease_id
    claim = claim_one(client, QUEUE)
    held = (claim.lease_id, claim.claim_token)
    assert client.save_checkpoint(*held, "charge", {"id": 7}, extend=HOUR) > claim.expires_at
    async with AsyncClient(dsn) as aclient:
        [saved] = await aclient.checkpoints(*held)
        assert (saved.name, saved.status, saved.state) == ("charge", "done", {"id": 7})
        assert (await aclient.take_signal(*held, "packed")).verdict == "none"
        sent = await aclient.signal_lease(lease_id, "packed", 1, key="k")
        assert (sent.created, sent.state) == (True, LeaseState.CLAIMED)
        assert (await aclient.take_signal(*held, "packed")).payload == 1
        state = await aclient.suspend_lease(*held, signal="packed", name="more")
        assert state is LeaseState.SCHEDULED
    with pytest.raises(LeaseLost):
        client.save_checkpoint(*held, "charge")


class Flaky:
    """Fails as often as it is told to."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls = 0

    def __call__(self, result: int = 7) -> int:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return result

    async def later(self, result: int = 7) -> int:
        await asyncio.sleep(0)
        return self(result)


AT_ONCE = timedelta(0)


def test_a_step_is_called_again_within_the_run() -> None:
    context = make_context()
    flaky = Flaky(ConnectionError("reset"), TimeoutError())
    assert context.step("ask", flaky, 8, retry=Retrying(3, AT_ONCE)) == 8
    assert flaky.calls == 3
    assert context.step("ask", flaky, retry=3) == 7, "a step of its own, as ever"
    kept = make_context(saved={"ask": 5})
    assert kept.step("ask", flaky, retry=3) == 5
    assert flaky.calls == 4


@pytest.mark.parametrize(
    ("error", "retry"),
    [
        (OSError("one call"), None),
        (OSError("one call"), 1),
        (ValueError("another one"), Retrying(3, AT_ONCE, on=OSError)),
        (ValueError("another one"), Retrying(3, AT_ONCE, on=(OSError, KeyError))),
        (Retry("later"), Retrying(3, AT_ONCE)),
        (Reject("never"), Retrying(3, AT_ONCE)),
        (Snooze(after=HOUR), Retrying(3, AT_ONCE)),
        (LeaseLost("gone"), Retrying(3, AT_ONCE)),
    ],
)
def test_what_is_not_called_again(error: Exception, retry: Retrying | int | None) -> None:
    flaky = Flaky(error)
    with pytest.raises(type(error)):
        make_context().step("ask", flaky, retry=retry)
    assert flaky.calls == 1


def test_the_waits_between_calls_grow_up_to_the_longest() -> None:
    retry = Retrying(6, timedelta(seconds=2), factor=3, longest=timedelta(seconds=40))
    assert [retry.pause(calls, OSError()) for calls in range(1, 7)] == [2, 6, 18, 40, 40, None]


def test_a_cancelled_handler_does_not_wait_for_the_next_call() -> None:
    context = make_context()
    context.cancelled.set()
    flaky = Flaky(OSError())
    with pytest.raises(Cancelled):
        context.step("ask", flaky, retry=Retrying(2, timedelta(minutes=5)))
    assert flaky.calls == 1


async def test_an_async_wait_says_where_it_wants_to_go_on() -> None:
    context = make_async_context()
    with pytest.raises(Suspended) as sleeps:
        await context.sleep(HOUR, near="self")
    with pytest.raises(Suspended) as waits:
        await context.wait_for("go", near="self")
    assert (sleeps.value.wait.near, waits.value.wait.near) == ("self", "self")
    wrong: Any = "rack"
    with pytest.raises(BadArgument, match="near is 'self' or None"):
        await context.sleep(HOUR, near=wrong)
    with pytest.raises(BadArgument, match="near is 'self' or None"):
        make_context().wait_for("go", near=wrong)
