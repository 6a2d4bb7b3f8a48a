"""Hooks: order, threads, and those that raise."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest

from hwqueue.app import App


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
