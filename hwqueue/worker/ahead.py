"""Leases that a worker has claimed ahead of its free slots.

Quick handlers wait more for the answers of the database than they run. So a worker that finds full
queues claims more than it has slots for; what is ahead starts as handlers end, while the next call
is under way. A lease ahead is a claim like any other: it is heartbeated, and may be cancelled.

Nobody should wait here who could run elsewhere. So nothing is ahead unless all that runs is short
(`Runner.wanted`), and each lease of the last claim, which was granted in full (`Ahead.answered`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from hwqueue.types import Claim

_SHORT_SECONDS = 0.05
_WAITS_SECONDS = 1.0
_MIXED_SECONDS = 60.0
_SHORTEST_CLAIM = timedelta(seconds=2 * _WAITS_SECONDS)
_WEIGHT = 1 / 8  # of the newest in an average
_CALLS = 2.0


@dataclass(slots=True)
class Ahead:
    """What waits for a slot, and how many more may be claimed.

    Attributes:
        slots: Handlers that run at once.
        most: Leases ahead, at most.
        clock: Seconds, ever rising.
        once: Tasks whose leases have one attempt: a worker that is killed would use it up.
        waiting: Each with the time until which it may wait and whether it is short, the next one
            first.
    """

    slots: int
    most: int
    clock: Callable[[], float]
    once: Collection[str] = ()
    waiting: deque[tuple[Claim, float, bool]] = field(default_factory=deque)
    _lasted: dict[str, float] = field(default_factory=dict)
    _lasts: float = 0.0
    _answer_takes: float = 0.0
    _window: int = 0
    _closed_until: float = 0.0

    @property
    def claims(self) -> list[Claim]:
        """Those that wait, the next one first."""
        return [claim for claim, *_more in self.waiting]

    @property
    def due_in(self) -> float | None:
        """Seconds until one has waited too long; None: none waits."""
        return max(0.0, self.waiting[0][1] - self.clock()) if self.waiting else None

    @property
    def room(self) -> int:
        """How many more may wait."""
        return max(0, min(self._window, self.most) - len(self.waiting))

    def ran(self, task: str, seconds: float) -> None:
        """A handler of the task has ended."""
        known = self._lasted.get(task, seconds)
        self._lasted[task] = known + (seconds - known) * _WEIGHT
        self._lasts += (seconds - self._lasts) * _WEIGHT

    def is_short(self, claim: Claim) -> bool:
        """Whether nothing is counted for it, and its task is known to be short.

        What is counted would be kept from other nodes. A member of a gang holds its slot until all
        are there.
        """
        is_plain = claim.assignment is None and (claim.headers is None or "gang_id" not in claim.headers)
        is_plain = is_plain and claim.task_name not in self.once
        return is_plain and self._lasted.get(claim.task_name, math.inf) <= _SHORT_SECONDS

    def answered(self, asked: int, claims: Collection[Claim], seconds: float) -> None:
        """A call that asked for leases was answered; it took `seconds`.

        What may be ahead grows up to what runs during two calls. Claims that may end while they
        wait (by this machine's clock) are none for it.
        """
        self._answer_takes += (seconds - self._answer_takes) * _WEIGHT
        if not asked:
            return
        soon = datetime.now(UTC) + _SHORTEST_CLAIM
        others = [one for one in claims if not self.is_short(one) or one.expires_at < soon]
        if 0 < len(others) < len(claims):
            self.close()
        elif others or len(claims) < asked or self.clock() < self._closed_until:
            self._window = 0
        else:
            # a call may have waited for a server that was away
            run = self.slots * min(_CALLS * self._answer_takes, _WAITS_SECONDS / 2) / max(self._lasts, 1e-6)
            self._window = min(2 * self._window + self.slots, round(run))

    def close(self) -> None:
        """Long leases come among the short ones: nothing more is claimed ahead for a while."""
        self._window, self._closed_until = 0, self.clock() + _MIXED_SECONDS

    def wait(self, claims: Sequence[Claim]) -> None:
        """Let these wait, those that are not short before all others."""
        until = self.clock() + _WAITS_SECONDS
        first = self.waiting[0][1] if self.waiting else until
        self.waiting.extend((one, until, True) for one in claims if self.is_short(one))
        self.waiting.extendleft((one, first, False) for one in reversed(claims) if not self.is_short(one))

    def take(self) -> tuple[Claim, bool] | None:
        """The next one to start, and whether it is short; None: none waits, or for too long."""
        if not self.due_in:
            return None
        claim, _until, is_short = self.waiting.popleft()
        return claim, is_short

    def drop(self, which: Callable[[Claim], object] = lambda _claim: True) -> list[Claim]:
        """Let those go for which something is said."""
        entries, self.waiting = self.waiting, deque()
        self.waiting.extend(entry for entry in entries if not which(entry[0]))
        return [claim for claim, *_more in entries if which(claim)]

    def drop_late(self) -> list[Claim]:
        """If one has waited too long all go, and nothing is claimed ahead for a while."""
        if self.due_in != 0:
            return []
        self.close()
        return self.drop()
