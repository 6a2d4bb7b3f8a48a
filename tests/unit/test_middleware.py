"""Middleware and hooks: order, threads, params and results, and those that raise."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest

from hwqueue.app import App
from hwqueue.errors import ConfigError
from hwqueue.worker import AsyncLeaseContext, LeaseContext
from tests.unit.claims import claim


def run(app: App, params: Any = None) -> Any:
    """Run the app's only task."""
    [task] = app.tasks.values()
    if not task.is_async:
        return task.run(LeaseContext(claim=claim("t", params)))
    context = AsyncLeaseContext(claim=claim("t", params))
    return asyncio.run(task.run_async(context))


def test_the_first_is_the_outermost_and_tasks_that_came_before_count() -> None:
    app, said = App(), []

    @app.task("t")
    def handle(params: Any) -> str:
        said.append("handler")
        return "done"

    @app.middleware
    def outer(call_next: Any, context: LeaseContext) -> Any:
        said.append(f"outer {context.task_name}")
        result = call_next(context)
        said.append("outer after")
        return f"<{result}>"

    @app.middleware
    def inner(call_next: Any, context: LeaseContext) -> Any:
        said.append("inner")
        return f"({call_next(context)})"

    assert run(app) == "<(done)>"
    assert said == ["outer t", "inner", "handler", "outer after"]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_params_may_be_replaced_for_all_that_follows(kind: str) -> None:
    app = App()
    if kind == "sync":
        app.middleware(lambda call_next, context: call_next(context.with_params({"n": 2})))
        app.task("t")(lambda params, context: [params, context.params])
    else:

        @app.middleware
        async def replace(call_next: Any, context: AsyncLeaseContext) -> Any:
            return await call_next(context.with_params({"n": 2}))

        @app.task("t")
        async def handle(params: Any, context: AsyncLeaseContext) -> Any:
            return [params, context.params]

    assert run(app, {"n": 1}) == [{"n": 2}, {"n": 2}]


def test_a_context_with_other_params_is_stopped_with_the_first() -> None:
    context = LeaseContext(claim=claim("t"))
    assert context.with_params(1).cancelled is context.cancelled
    assert context.params is None


def test_errors_pass_through_and_may_be_handled() -> None:
    app, seen = App(), []

    @app.middleware
    def outer(call_next: Any, context: LeaseContext) -> Any:
        try:
            return call_next(context)
        except LookupError as error:
            return f"handled {error}"

    @app.middleware
    def inner(call_next: Any, context: LeaseContext) -> Any:
        try:
            return call_next(context)
        except Exception as error:
            seen.append(error)
            raise

    @app.task("t")
    def handle(params: Any) -> None:
        raise params

    missing, broken = LookupError("x"), RuntimeError("y")
    assert run(app, missing) == "handled x"
    with pytest.raises(RuntimeError) as raised:
        run(app, broken)
    assert raised.value is broken
    assert seen == [missing, broken]


@pytest.mark.parametrize("is_async", [True, False])
def test_each_kind_is_for_handlers_of_its_kind(is_async: bool) -> None:
    app, said = App(), []

    @app.middleware
    def sync(call_next: Any, context: Any) -> Any:
        said.append("sync")
        return call_next(context)

    class Async:
        async def __call__(self, call_next: Any, context: Any) -> Any:
            said.append("async")
            return await call_next(context)

    app.middleware(Async())

    async def in_loop(params: Any) -> int:
        return params  # type: ignore[no-any-return]

    app.task("t")(in_loop if is_async else lambda params: params)
    assert run(app, 7) == 7
    assert said == ["async" if is_async else "sync"]


def test_it_need_not_call_the_handler() -> None:
    app = App()
    app.middleware(lambda call_next, context: "skipped")
    app.task("t")(lambda params: 1 / 0)
    assert run(app) == "skipped"


@pytest.mark.parametrize("wrong", [lambda context: None, lambda a, b, c: None, "text"])
def test_it_takes_two_arguments(wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"must be a function of \(call_next, context\)"):
        App().middleware(wrong)


async def test_they_run_in_order_sync_ones_in_a_thread() -> None:
    app, said = App(), []

    @app.on_dead
    def first(claim: Any, error: Any) -> None:
        said.append(("first", claim, error, threading.current_thread() is threading.main_thread()))

    @app.on_dead
    async def second(claim: Any, error: Any) -> None:
        said.append(("second", claim, error, threading.current_thread() is threading.main_thread()))

    await app.call_hooks("failure", "claim", "error")
    assert said == []
    await app.call_hooks("dead", "claim", "error")
    assert said == [("first", "claim", "error", False), ("second", "claim", "error", True)]


@pytest.mark.parametrize("error", [RuntimeError("x"), SystemExit(3), StopIteration()])
async def test_one_that_raises_is_logged_and_the_next_one_runs(
    caplog: pytest.LogCaptureFixture, error: BaseException
) -> None:
    app, said = App(), []

    def broken() -> None:
        raise error

    async def broken_too() -> None:
        raise error

    app.on_start(broken)
    app.on_start(broken_too)
    app.on_start(lambda: said.append("third"))
    await asyncio.wait_for(app.call_hooks("start"), 30)
    assert said == ["third"]
    lines = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert ["broken (on_start) raised" in one.getMessage() for one in lines] == [True, False]
    assert "broken_too (on_start) raised" in lines[1].getMessage()
    assert all(one.exc_info for one in lines)
