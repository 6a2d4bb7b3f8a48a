"""How the pages read: in transactions that only read, shared by viewers, and timed."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Coroutine
from contextvars import ContextVar
from dataclasses import dataclass, field
from inspect import signature
from time import perf_counter
from typing import Any, Concatenate, ParamSpec, TypeVar

from hwqueue.client import AsyncClient
from hwqueue.dashboard.cache import Cached, ReadCache
from hwqueue.server.pools import Pools

P = ParamSpec("P")
T = TypeVar("T")
_ACTOR = "dashboard"
VIEWER = ContextVar("viewer", default=_ACTOR)
"""Whose request it is: what a page reads about one thing counts as its viewer's."""
_TIMINGS = 200  # the last ones of each read


@dataclass(frozen=True, slots=True)
class Timing:
    """How long the last reads of a kind took, in seconds, and how many failed since the start."""

    name: str
    count: int
    p50: float | None
    p95: float | None
    failed: int


@dataclass(slots=True)
class _Watch:
    count: int = 0
    failed: int = 0
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=_TIMINGS))


class Reading:
    """Reads by name: what a page needs of them, and how long they took."""

    def __init__(self, pools: Pools) -> None:
        self._pools = pools
        self._cache = ReadCache()
        self._watches: dict[str, _Watch] = defaultdict(_Watch)

    def forget(self) -> None:
        """Something was changed: read again what is cached."""
        self._cache.forget()

    def timings(self) -> list[Timing]:
        """How long the reads took, by name."""
        made = []
        for name, watch in sorted(self._watches.items()):
            last = sorted(watch.seconds)
            p50 = last[len(last) // 2] if last else None
            p95 = last[min(len(last) - 1, len(last) * 95 // 100)] if last else None
            made.append(Timing(name, watch.count, p50, p95, watch.failed))
        return made

    async def _read(self, name: str, ask: Callable[[AsyncClient], Awaitable[T]], who: str | None = None) -> T:
        """Ask in a transaction that only reads, and note how long it took."""
        watch = self._watches[name]
        watch.count += 1
        began = perf_counter()
        try:
            async with self._pools.read(who or VIEWER.get()) as client:
                return await ask(client)
        except Exception:
            watch.failed += 1
            raise
        finally:
            watch.seconds.append(perf_counter() - began)


def read(
    ask: Callable[Concatenate[AsyncClient, P], Awaitable[T]],
) -> Callable[Concatenate[Reading, P], Coroutine[Any, Any, T]]:
    """A method that asks the client this."""
    name = _name(ask)

    async def method(self: Reading, /, *args: P.args, **options: P.kwargs) -> T:
        return await self._read(name, lambda client: ask(client, *args, **options))

    return method


def shared(
    seconds: float, ask: Callable[Concatenate[AsyncClient, P], Awaitable[T]]
) -> Callable[Concatenate[Reading, P], Coroutine[Any, Any, Cached[T]]]:
    """A method that asks the client this, unless a viewer has asked the same that long ago."""
    name, asked_for = _name(ask), signature(ask)

    async def method(self: Reading, /, *args: P.args, **options: P.kwargs) -> Cached[T]:
        given = asked_for.bind(None, *args, **options)
        given.apply_defaults()
        about = given.args[1:] + tuple(given.kwargs.values())
        # nobody waits for what all share behind somebody's many pages about one thing each
        who = _ACTOR if all(each is None for each in about) else None

        async def fetch() -> T:
            return await self._read(name, lambda client: ask(client, *args, **options), who)

        return await self._cache.get((name, about), seconds, fetch)

    return method


def _name(ask: Callable[..., Any]) -> str:
    return getattr(ask, "__name__", "").lstrip("_")
