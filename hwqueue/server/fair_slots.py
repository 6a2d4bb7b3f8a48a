"""Fair slots: who asks for many connections leaves some to others.

Slots are counted by tenant, or by actor where there is none, so that another token buys nothing.
The last free slot goes to who holds none. While two or more hold slots or wait for one, each has
half of them at most; and fewer the more times longer its requests take than those of others, and
the busier the machine is: the database takes longer then to answer a statement that does nothing.
There is always one slot, but for long requests, on a busy machine, of who has slots for longest:
they pause in between, for a gang of a thousand keeps a core from all others as long as it runs.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Set
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import takewhile

from psycopg_pool import PoolTimeout


class Busy(PoolTimeout):
    """No slot became free in time; the text says who holds them.

    is_own: The caller has as many as one may have beside others.
    """

    def __init__(self, message: str, *, is_own: bool) -> None:
        super().__init__(message)
        self.is_own = is_own


# Requests that take no longer than this are quick, whatever those of others take.
_QUICK_SECONDS = 0.004
# Who pauses has longer ones than this: shorter ones keep a core from nobody for long.
_LONG_SECONDS = 0.015
# How much longer than at best a statement that does nothing takes before a machine counts as busy,
# or twice as long as at best: the network is not always equally quick.
_IDLE_SECONDS = 0.00025
# No such statement says more than this: a database that stood still for seconds is soon forgotten.
_BUSIEST = 10.0
# How long somebody counts as being there after a request, for those whose requests take longer.
_PRESENT_SECONDS = 1.0
_REMEMBERED_SECONDS = 60.0
# What such a statement leaves of those before it: their times vary.
_KEPT_ANSWERS = 0.95
# The least part of the time that somebody has a slot.
_LEAST = 0.25


@dataclass(slots=True)
class _Use:
    """What is known of a holder.

    load: slots held on the average of the last second before `last`, all pools together.
    busy: how busy the database seemed: 0 at best, from 1 on it is; as far as is `known`, 0 to 1.
    """

    last: float = -math.inf
    seconds: float = 0.0
    squares: float = 0.0
    load: float = 0.0
    busy: float = 0.0
    known: float = 0.0

    @property
    def mean(self) -> float:
        """How long the request takes that holds a slot at a random moment: quick ones hide no slow one."""
        return self.squares / self.seconds if self.seconds else 0.0


class Usage:
    """Who had requests lately, and how long theirs take; shared by the slots of several pools."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self._uses: dict[str, _Use] = {}  # who had the last request stands last
        self._best_answer = math.inf
        self._answered = clock()

    def note(self, holder: str, seconds: float) -> None:
        """A request of this holder has ended, after these seconds."""
        now = self.clock()
        use = self._uses.pop(holder, _Use(now))
        # averages of the last second fade by e in each second: many quick requests hide no long one
        kept = math.exp(use.last - now)
        use.load = kept * use.load + 1 - math.exp(-seconds)
        use.last = now
        use.seconds = kept * use.seconds + seconds
        use.squares = kept * use.squares + seconds * seconds
        self._uses[holder] = use
        while now - (oldest := next(iter(self._uses.items())))[1].last > _REMEMBERED_SECONDS:
            del self._uses[oldest[0]]

    def note_answer(self, holder: str, seconds: float) -> None:
        """The database took so long to answer a statement that does nothing."""
        now = self.clock()
        # two to three times as long each minute: the next server, or its network, may be slower
        drift = 1 + (now - self._answered) / _REMEMBERED_SECONDS
        best = self._best_answer = min(drift * self._best_answer, seconds)
        self._answered = now
        if use := self._uses.get(holder):
            busy = min((seconds - best) / max(_IDLE_SECONDS, best), _BUSIEST)
            use.busy += (1 - _KEPT_ANSWERS) * (busy - use.busy)
            use.known += (1 - _KEPT_ANSWERS) * (1 - use.known)

    def of(self, holder: str) -> _Use:
        """What is known of this holder."""
        return self._uses.get(holder) or _Use()

    def shares(self, size: int, here: Set[str]) -> Callable[[str], float]:
        """The most of these slots that somebody may have on the average of a second.

        here: Who holds or waits for one now; others are there for a second after a request.
        """
        now = self.clock()
        there = list(takewhile(lambda use: now - use.last < _PRESENT_SECONDS, reversed(self._uses.values())))
        quick = max(_QUICK_SECONDS, min((use.mean for use in there), default=math.inf))
        all_busy, all_known = sum(use.busy for use in there), sum(use.known for use in there)

        def share(holder: str) -> float:
            use = self.of(holder)
            is_there = now - use.last < _PRESENT_SECONDS
            if len(there) == is_there and here <= {holder}:
                return size
            longer = max(1.0, use.mean / quick)
            # as others find it, who is new counting less
            known = max(1.0, all_known - is_there * use.known)
            busy = max(1.0, (all_busy - is_there * use.busy) / known)
            # of those whose requests take a quarter as long, at least: floods of quick ones free no long one
            heaviest = max((each.load for each in there if 4 * each.mean >= use.mean), default=0.0)
            is_long = longer >= 2 and use.mean >= _LONG_SECONDS
            least = _LEAST if is_long and use.load >= heaviest else 1.0
            return max(least, max(1.0, size // 2 / longer) / busy**2)

        return share

    def pause(self, holder: str, share: float) -> float:
        """Seconds until somebody will have held no more than its share of a slot on the average."""
        use = self.of(holder)
        if share >= 1 or not use.load:
            return 0.0
        return max(0.0, math.log(use.load / share) - (self.clock() - use.last))


class FairSlots:
    """A number of slots. The next one goes to who holds the fewest, of those to who had none for longest."""

    def __init__(self, size: int, max_wait: float, what: str, usage: Usage) -> None:
        """`what`: what they are slots for, in words: "connections for calls"."""
        self._size = size
        self._max_wait = max_wait
        self._what = what
        self._usage = usage
        self._held = Counter[str]()
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []
        self._later: asyncio.TimerHandle | None = None

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
        """Give each free slot to somebody who waits and may have it; look again when that may change."""
        if self._later is not None:
            self._later.cancel()
        if not self._waiting or self._held.total() == self._size:
            return
        share = self._shares()
        shares = {holder: share(holder) for holder in dict(self._waiting)}
        pauses = {holder: self._usage.pause(holder, each) for holder, each in shares.items()}
        most = {holder: 0 if pauses[holder] else max(1, round(each)) for holder, each in shares.items()}
        while able := self._able(most):
            chosen = min(able, key=lambda each: (self._held[each[0]], self._usage.of(each[0]).last))
            self._waiting.remove(chosen)
            self._held[chosen[0]] += 1
            chosen[1].set_result(None)
        if self._waiting and self._held.total() < self._size:
            # somebody has paused, or others are gone
            after = min([_PRESENT_SECONDS, *filter(None, pauses.values())])
            self._later = asyncio.get_running_loop().call_later(after, self._hand_out)

    def _able(self, most: Mapping[str, int]) -> list[tuple[str, asyncio.Future[None]]]:
        """Those who wait and may have one of the slots that are free now."""
        free = self._size - self._held.total()
        return [
            each
            for each in self._waiting
            if free > (self._held[each[0]] > 0) and self._held[each[0]] < most[each[0]]
        ]

    def _shares(self) -> Callable[[str], float]:
        """The most slots that a holder may have."""
        return self._usage.shares(self._size, {*self._held, *(holder for holder, _ in self._waiting)})

    def _busy(self, holder: str) -> Busy:
        held, waiting = self._held[holder], [name for name, _ in self._waiting].count(holder)
        others, share = self._held.total() - held, self._shares()(holder)
        pauses = self._usage.pause(holder, share) > 0
        return Busy(
            f"of {self._size} {self._what} you hold {held}, and others hold {others}; "
            f"{waiting} of your requests wait{', for long ones pause on a busy machine' if pauses else ''}",
            is_own=pauses or (share < self._size and held >= share),
        )
