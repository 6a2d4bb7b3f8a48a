"""The one way from a method to the database and back."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self, TypeVar

from hwqueue.calls import Call, CallOf
from hwqueue.client._arguments import arguments, checked_actor
from hwqueue.client._async.runner import AsyncCallRunner, AsyncPoolRunner
from hwqueue.client._drivers import Rows
from hwqueue.client._finish import afinish
from hwqueue.client._rows import decode, value_of
from hwqueue.driver_errors import translate

T = TypeVar("T")


class AsyncPart:
    """Base of the parts of the client: calls a SQL function and decodes what it returns."""

    def __init__(self, runner: AsyncCallRunner, actor: str | None = None) -> None:
        self._runner = runner
        self._actor = None if actor is None else checked_actor(actor)

    def acting_as(self, actor: str) -> Self:
        """The same client, on the same connections, whose calls are done by `actor`.

        That is what their events say; a server that works for many users makes one for each
        request. Nothing but that: rights stay those of the connection. Close the original only.

        Raises: BadArgument.
        """
        other = copy.copy(self)
        other._actor = checked_actor(actor)
        return other

    async def _call(self, call: Call, **values: Any) -> Rows:
        """The raw rows of a call. Arguments that are None keep the function's default."""
        given = await self._arguments(call, values)
        with translate():
            return await afinish(self._runner.run(call, given, self._actor))

    async def _do(self, work: Callable[[], T]) -> T:
        """What `work` returns: it takes as long as there are leases, or rows, and waits for nothing."""
        return work()

    async def _arguments(self, call: Call, values: Mapping[str, Any]) -> dict[str, Any]:
        """The checked arguments of a call. Raises: BadArgument."""
        return arguments(call, values)

    async def _rows(self, call: CallOf[T], **values: Any) -> list[T]:
        """The rows of a call."""
        rows = await self._call(call, **values)
        return await self._do(lambda: decode(call, rows))

    async def _rows_of_all(self, call: CallOf[T], each: Iterable[Mapping[str, Any]]) -> list[T]:
        """The rows of calls in one transaction of their own, for which the runner is a pool."""
        assert isinstance(self._runner, AsyncPoolRunner)
        given = (arguments(call, values) for values in each)
        with translate():
            return decode(call, await afinish(self._runner.run(call, {}, self._actor, given)))

    async def _row(self, call: CallOf[T], **values: Any) -> T:
        """The row of a call that always returns one."""
        return (await self._rows(call, **values))[0]

    async def _value(self, call: CallOf[T], **values: Any) -> T:
        """The value of a call that returns one."""
        return value_of(call, (await self._call(call, **values))[0][0])
