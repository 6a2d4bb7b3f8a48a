"""Functions of both kinds of clients, written once: for an `AsyncClient`.

The calls of a `Client` have ended when they are awaited. So what is written for the other kind waits
for nothing when it is given one, and runs to its end at once, in the thread that asks.
"""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast, overload

from hwqueue.client import AsyncClient, Client

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class OfEither(Protocol[P, T_co]):
    """A function that takes either kind of client first; with an `AsyncClient`, await the result."""

    @overload
    def __call__(
        self, client: AsyncClient, /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T_co]: ...

    @overload
    def __call__(self, client: Client, /, *args: P.args, **kwargs: P.kwargs) -> T_co: ...

    def __call__(self, client: Any, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call it."""


def of_either(work: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]) -> OfEither[P, T]:
    """Let a coroutine function take a `Client`, too, and be no coroutine function then."""

    @functools.wraps(work)
    def worked(client: Any, *args: P.args, **kwargs: P.kwargs) -> Any:
        if isinstance(client, Client):
            return at_once(work(cast(AsyncClient, AtOnce(client)), *args, **kwargs))
        return work(client, *args, **kwargs)

    return cast("OfEither[P, T]", worked)


class AtOnce:
    """A `Client` whose calls are awaited, and have ended by then."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._runner = client._runner

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._client, name)

        async def called(*args: Any, **kwargs: Any) -> Any:
            return call(*args, **kwargs)

        return called


def at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """What a coroutine returns that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        return cast(T, ended.value)
    coroutine.close()
    raise AssertionError(f"{coroutine!r} waits for something, with a client that does not")


def is_at_once(client: object) -> bool:
    """Whether the calls of this client have ended when they are awaited."""
    return isinstance(client, AtOnce)


async def pause(client: AsyncClient, seconds: float) -> None:
    """Wait, as the calls of this client do."""
    if is_at_once(client):
        time.sleep(seconds)
    else:
        await asyncio.sleep(seconds)
