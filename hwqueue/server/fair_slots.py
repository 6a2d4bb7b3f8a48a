"""Fair slots: who asks for many connections leaves some to others.

Slots are counted by tenant, or by actor where there is none, so that another token buys nothing.
The last free slot goes to who holds none. While two or more hold slots or wait for one, each has
half of them at most.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from psycopg_pool import PoolTimeout


class Busy(PoolTimeout):
    """No slot became free in time; the text says who holds them.

    is_own: The caller has as many as one may have beside others.
    """

    def __init__(self, message: str, *, is_own: bool) -> None:
        super().__init__(message)
        self.is_own = is_own


class FairSlots:
    """A number of slots. The next one goes to who holds the fewest, of those to who came first."""

    def __init__(self, size: int, max_wait: float, what: str) -> None:
        """`what`: what they are slots for, in words: "connections for calls"."""
        self._size = size
        self._max_wait = max_wait
        self._what = what
        self._held = Counter[str]()
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []

    @asynccontextmanager
    async def slot(self, holder: str) -> AsyncIterator[None]:
        """A slot of this holder, for as long as the block lasts. Raises: Busy."""
        await self._acquire(holder)
        try:
            yield
        finally:
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
        free, share = self._size - self._held.total(), self._share()
        return [
            (holder, asked)
            for holder, asked in self._waiting
            if free > (self._held[holder] > 0) and self._held[holder] < share
        ]

    def _share(self) -> int:
        """The most slots of one holder."""
        holders = {*self._held, *(holder for holder, _ in self._waiting)}
        return self._size if len(holders) < 2 else max(1, self._size // 2)

    def _busy(self, holder: str) -> Busy:
        held, waiting = self._held[holder], [name for name, _ in self._waiting].count(holder)
        others = self._held.total() - held
        return Busy(
            f"of {self._size} {self._what} you hold {held}, and others hold {others}; "
            f"{waiting} of your requests wait",
            is_own=self._share() < self._size and held >= self._share(),
        )
