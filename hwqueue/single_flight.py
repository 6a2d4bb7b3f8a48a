"""Single flight: concurrent calls with one key share one execution."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class SingleFlight(Generic[T]):
    """Runs one call per key at a time; all who ask meanwhile get its result, or its error."""

    def __init__(self) -> None:
        self._tasks: dict[Hashable, asyncio.Task[T]] = {}

    async def do(self, key: Hashable, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of the call under way for this key, or of one that begins now.

        Raises: whatever `call` raises.
        """
        # a cancelled caller does not cancel the call that others wait for
        return await asyncio.shield(self.start(key, call))

    def start(self, key: Hashable, call: Callable[[], Coroutine[Any, Any, T]]) -> asyncio.Task[T]:
        """The task of the call under way for this key, or of one that begins now."""
        task = self._tasks.get(key)
        if task is None:
            task = self._tasks[key] = asyncio.ensure_future(call())
            task.add_done_callback(lambda done: self._remove(key, done))
        return task

    def forget(self) -> None:
        """Let calls under way end; the next caller of each key starts another one."""
        self._tasks.clear()

    def _remove(self, key: Hashable, task: asyncio.Task[T]) -> None:
        if self._tasks.get(key) is task:
            del self._tasks[key]
