"""One question for all who ask the same thing at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Together(Generic[T]):
    """Asks once for all that come while it is asked; each of them gets the answer, or the error."""

    def __init__(self) -> None:
        self._asking: dict[Hashable, asyncio.Task[T]] = {}

    async def ask(self, key: Hashable, question: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The answer to a question that begins now, or that is under way for this key."""
        asking = self._asking.get(key)
        if asking is None:
            asking = self._asking[key] = asyncio.ensure_future(question())
            asking.add_done_callback(lambda _: self._asking.pop(key, None))
        # who goes away does not take the answer from the others
        return await asyncio.shield(asking)
