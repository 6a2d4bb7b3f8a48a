"""In which event loops the tests run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop

_ON_BOTH = (
    "test_what_a_handler_returns_is_the_result",
    "test_a_process_handler_runs_elsewhere",
    "test_no_exception_of_a_handler_harms_the_worker",
    "test_a_handler_that_runs_too_long_fails",
)


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """A worker runs in any event loop: in that of the program that holds it."""
    factories: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"asyncio": asyncio.new_event_loop}
    if item.name in _ON_BOTH:
        factories["uvloop"] = uvloop.new_event_loop
    return factories
