"""Fair slots: who asks for many connections leaves some to others.

Slots are counted by tenant, or by actor where there is none, so that another token buys nothing.
The last free slot goes to who holds none. While two or more hold slots or wait for one, each has
half of them at most; and fewer, down to one, the more times longer its requests take than those of
others: a submission of a large run keeps a processor busy for as long as it holds its slot.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from psycopg_pool import PoolTimeout


class Busy(PoolTimeout):
    """No slot became free in time; the text says who holds them.

    is_own: The caller has as many as one may have beside others.
    """

    def __init__(self, message: str, *, is_own: bool) -> None:
        super().__init__(message)
        self.is_own = is_own


# Requests that take no longer than this are quick, whatever those of others take.
_QUICK_SECONDS = 0.025
# How long somebody counts as being there after a request, for those whose requests take longer.
_PRESENT_SECONDS = 1.0
_REMEMBERED_SECONDS = 60.0
# What a request counts of those before it: after ten of them a tenth.
_KEPT = 0.8


@dataclass(slots=True)
class _Use:
    last: float
    seconds: float = 0.0
    squares: float = 0.0

    @property
    def mean(self) -> float:
        """How long the request takes that holds a slot at a random moment: quick ones hide no slow one."""
        return self.squares / self.seconds if self.seconds else 0.0


class Usage:
    """Who had requests lately, and how long theirs take; shared by the slots of several pools."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._uses: dict[str, _Use] = {}  # who had the last request stands last

    def note(self, holder: str, seconds: float) -> None:
        """A request of this holder has ended, after these seconds."""
        now = self.clock()
        use = self._uses.pop(holder, None) or _Use(now)
        use.last = now
        use.seconds = _KEPT * use.seconds + seconds
        use.squares = _KEPT * use.squares + seconds * seconds
        self._uses[holder] = use
        while now - (oldest := next(iter(self._uses.items())))[1].last > _REMEMBERED_SECONDS:
            del self._uses[oldest[0]]

    def times_longer(self) -> dict[str, float]:
        """How many times longer somebody's requests take than the quickest of those who are there."""
        now = self.clock()
        there = [use.mean for use in self._uses.values() if now - use.last < _PRESENT_SECONDS]
        quick = max(_QUICK_SECONDS, min(there, default=math.inf))
        return {holder: use.mean / quick for holder, use in self._uses.items() if use.mean > quick}


class FairSlots:
    """A number of slots. The next one goes to who holds the fewest, of those to who came first."""

    def __init__(self, size: int, max_wait: float, what: str, usage: Usage) -> None:
        """`what`: what they are slots for, in words: "connections for calls"."""
        self._size = size
        self._max_wait = max_wait
        self._what = what
        self._usage = usage
        self._held = Counter[str]()
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []

    @asynccontextmanager
    async def slot(self, holder: str) -> AsyncIterator[None]:
        """A slot of this holder, for as long as the block lasts. Raises: Busy."""
        await self._acquire(holder)
        begun = self._usage.clock()
        try:
            yield
        finally:
            self._usage.note(holder, self._usage.clock() - begun)
            self._release(holder)

    async def _acquire(self, holder: str) -> None:
        asked = (holder, asyncio.get_running_loop().create_future())
        self._waiting.append(asked)
        self._hand_out()
        try:
            await asyncio.wait(asked[1:], timeout=self._max_wait)
        except asyncio.CancelledError:
            if asked[1].done():
                self._release(holder)
            else:
                self._withdraw(asked)
            raise
        if not asked[1].done():
            refusal = self._busy(holder)
            self._withdraw(asked)
            raise refusal

    def _release(self, holder: str) -> None:
        self._held[holder] -= 1
        if not self._held[holder]:
            del self._held[holder]  # there may be many over time
        self._hand_out()

    def _withdraw(self, asked: tuple[str, asyncio.Future[None]]) -> None:
        self._waiting.remove(asked)
        self._hand_out()  # who is alone now may have more

    def _hand_out(self) -> None:
        """Give each free slot to somebody who waits and may have it."""
        while able := self._able():
            chosen = min(able, key=lambda each: self._held[each[0]])
            self._waiting.remove(chosen)
            self._held[chosen[0]] += 1
            chosen[1].set_result(None)

    def _able(self) -> list[tuple[str, asyncio.Future[None]]]:
        """Those who wait and may have one of the slots that are free now."""
        free, share = self._size - self._held.total(), self._shares()
        return [
            (holder, asked)
            for holder, asked in self._waiting
            if free > (self._held[holder] > 0) and self._held[holder] < share(holder)
        ]

    def _shares(self) -> Callable[[str], int]:
        """The most slots that a holder may have."""
        holders = {*self._held, *(holder for holder, _ in self._waiting)}
        half, longer = self._size // 2, self._usage.times_longer()
        most = self._size if len(holders) < 2 else max(1, half)
        return lambda holder: max(1, round(half / longer[holder])) if holder in longer else most

    def _busy(self, holder: str) -> Busy:
        held, waiting = self._held[holder], [name for name, _ in self._waiting].count(holder)
        others, share = self._held.total() - held, self._shares()(holder)
        return Busy(
            f"of {self._size} {self._what} you hold {held}, and others hold {others}; "
            f"{waiting} of your requests wait",
            is_own=share < self._size and held >= share,
        )
