"""Single leases of short queues: which are reserved where, and what becomes of that.

Nodes fetch what is reserved on them, or do not: a worker may be busy otherwise, or hang. Then room
is held in vain for as long as a reservation lasts. Two rules bound that:

- A lease is reserved once, until a node has fetched it. One that came back is left to claims.
- A node that has let one expire gets none for 19 times as long as it held it. So at most 5 % of a
  node's room is held in vain over time, whatever the node does.

And a round reserves 2,000 leases at most.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from hwqueue.client import AsyncClient
from hwqueue.planner.flow import Wanted, contested, plan_leases
from hwqueue.planner.reading import read_matches
from hwqueue.planner.settings import Settings

_SECONDS = 2.0  # of a round
_MOST_ARCS = 20_000  # classes times nodes of a queue; with more, nodes choose by themselves
_MOST = 2000  # leases that a round reserves
_AT_ONCE = 64  # places, as reserve_leases has it
_ASKED_AT_ONCE = 1000  # as assigned_leases has it
_REST = 19  # times as long as a node held a lease in vain: it holds some in 5 % of the time at most


@dataclass(frozen=True, slots=True)
class _Reserved:
    """Where a lease is reserved, and since when."""

    node_id: UUID
    at: float


class Singles:
    """What a planner does with single leases, and what it remembers of them.

    Args:
        is_stopping: Whether the planner is to end soon.
        clock: Seconds, ever rising.
    """

    def __init__(
        self,
        client: AsyncClient,
        settings: Settings,
        is_stopping: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client = client
        self._settings = settings
        self._is_stopping = is_stopping
        self._clock = clock
        self._reserved: dict[UUID, _Reserved] = {}  # as far as is known
        self._expired: dict[UUID, UUID] = {}  # leases that came back, and the node that let them
        self._resting: dict[UUID, float] = {}  # nodes, and until when

    @property
    def resting(self) -> int:
        """How many nodes get no leases for now."""
        return sum(until > self._clock() for until in self._resting.values())

    async def assign(self, number: int, epoch: int) -> Counter[str]:
        """Plan, and have those leases reserved that need it.

        Returns: How many were proposed, and so on (`Round.singles`).
        Raises: QueueUnknown; RuntimeError, where the flow is not solved.
        """
        counts: Counter[str] = Counter()
        if not self._settings.lease_hold:
            return counts
        until = self._clock() + _SECONDS
        found = await read_matches(self._client, self._settings.queues)
        waiting = {lease.lease_id for q in found.values() for each in q for lease in each.leases}
        await self._follow_up(waiting, counts)
        for wanted in found.values():
            if self._clock() >= until:
                break
            # in a thread, so that a stop is heard
            places = await asyncio.to_thread(_planned, self._without_resting(wanted))
            await self._reserve((number, epoch), self._new(places, counts), until, counts)
        return +counts

    async def _follow_up(self, waiting: set[UUID], counts: Counter[str]) -> None:
        """Learn what became of reservations, and forget what has run or ended.

        A lease that came back stays known while it waits, also where the plan does not see it: its
        queue may be long now, or no node have room for it.
        """
        unseen = {lease: node for lease, node in self._expired.items() if lease not in waiting}
        asked = {lease: each.node_id for lease, each in self._reserved.items()} | unseen
        for start in range(0, len(asked), _ASKED_AT_ONCE):
            part = dict(list(asked.items())[start : start + _ASKED_AT_ONCE])
            rows = await self._client.assigned_leases(part)
            for row in rows:
                if row.lease_id in self._reserved:
                    self._learn(row.lease_id, row.verdict, counts)
                elif row.verdict != "expired":
                    del self._expired[row.lease_id]
        now = self._clock()
        self._resting = {node: until for node, until in self._resting.items() if until > now}

    def _learn(self, lease_id: UUID, verdict: str, counts: Counter[str]) -> None:
        if verdict == "reserved":
            return
        counts[verdict] += 1
        was = self._reserved.pop(lease_id)
        if verdict == "expired":
            self._expired[lease_id] = was.node_id
            now = self._clock()
            rest = now + _REST * (now - was.at)
            self._resting[was.node_id] = max(rest, self._resting.get(was.node_id, rest))

    def _without_resting(self, wanted: Iterable[Wanted]) -> list[Wanted]:
        return [
            replace(each, options=[one for one in each.options if one.node_id not in self._resting])
            for each in wanted
        ]

    def _new(self, places: Mapping[UUID, UUID], counts: Counter[str]) -> Sequence[tuple[UUID, UUID]]:
        """Those that were not reserved before, as many as a round may reserve."""
        left = [
            (lease, node)
            for lease, node in places.items()
            if lease not in self._reserved and lease not in self._expired
        ]
        room = max(0, _MOST - (counts["proposed"] - counts["too_many"]))
        counts["proposed"] += len(left)
        counts["too_many"] += len(left[room:])
        return left[:room]

    async def _reserve(
        self, fence: tuple[int, int], places: Sequence[tuple[UUID, UUID]], until: float, counts: Counter[str]
    ) -> None:
        number, epoch = fence
        for start in range(0, len(places), _AT_ONCE):
            if self._is_stopping() or self._clock() >= until:
                counts["too_many"] += len(places) - start
                return
            part = dict(places[start : start + _AT_ONCE])
            rows = await self._client.reserve_leases(
                part, hold=self._settings.lease_hold, round=number, epoch=epoch
            )
            counts.update(row.verdict for row in rows)
            at = self._clock()
            self._reserved |= {
                row.lease_id: _Reserved(part[row.lease_id], at) for row in rows if row.verdict == "reserved"
            }


def _planned(wanted: Sequence[Wanted]) -> Mapping[UUID, UUID]:
    """The nodes of leases that would not get them by themselves."""
    if sum(len(each.options) for each in wanted) > _MOST_ARCS:
        return {}
    return contested(wanted, plan_leases(wanted))
