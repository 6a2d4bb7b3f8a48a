"""Timed runs: jobs arrive and end as recorded, with the clock running `speedup` times faster."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import random
from collections import Counter
from collections.abc import Awaitable, Sequence
from datetime import timedelta
from uuid import UUID

from hwqueue.client import AsyncClient
from hwqueue.demo.fleet import Fleet, Node
from hwqueue.demo.ledger import Grant
from hwqueue.demo.mapping import PRIORITY_OF_QOS
from hwqueue.demo.model import Job, Trace
from hwqueue.types import SpawnOptions

# How often an idle connection looks again; jobs that arrive in between are spawned in one batch.
TICK_SECONDS = 0.01
REAP_SECONDS = 1.0
DAY_SECONDS = 86_400
BUSY_DAY_JOBS = 10


class TimedRun:
    """One timed run.

    A node asks for work when its own lease ends, and, in random order, when something new has
    arrived; a node that got nothing asks again after the next arrival or departure of its own.
    """

    def __init__(self, fleet: Fleet, trace: Trace, *, speedup: float, seed: int) -> None:
        self._fleet = fleet
        self._speedup = speedup
        self._rng = random.Random(seed)
        self._origin = recording_start(trace)
        self._jobs = sorted(trace.jobs, key=self.arrival)
        self._by_name = {node.machine.name: node for node in fleet.nodes}
        self._busy: set[str] = set()
        self._hungry: list[Node] = []
        self._arrivals = 0
        self._ends: list[tuple[float, int, Grant]] = []
        self._counter = itertools.count()
        self._deadlines: list[tuple[float, int, UUID]] = []
        self._all_spawned = False

    def arrival(self, job: Job) -> float:
        """Return when a job arrives, in seconds of this run; what was created before it, at 0."""
        return max(0, job.created_at - self._origin) / self._speedup

    async def run(self) -> None:
        """Run to the end: all arrived, all that can run has run, all deadlines have passed."""
        self._fleet.start_clock()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._spawn_arrivals())
            group.create_task(self._reap())
            for client in self._fleet.clients:
                group.create_task(self._work(client))
        await self._close_deadlines()

    async def _spawn_arrivals(self) -> None:
        start = 0
        while start < len(self._jobs):
            now = self._fleet.now
            end = start
            while end < len(self._jobs) and self.arrival(self._jobs[end]) <= now:
                end += 1
            if end > start:
                await self._spawn(self._jobs[start:end])
                start = end
            else:
                await asyncio.sleep(max(TICK_SECONDS, self.arrival(self._jobs[start]) - now))
        self._all_spawned = True

    async def _spawn(self, jobs: Sequence[Job]) -> None:
        lease_ids = await self._fleet.spawn(jobs, [self._options(job) for job in jobs])
        for lease_id, job in zip(lease_ids, jobs, strict=True):
            if job.scheduled_at is None:
                item = (self._end_if_unscheduled(job), next(self._counter), lease_id)
                heapq.heappush(self._deadlines, item)
        self._arrivals += 1
        self._hungry = self._rng.sample(self._fleet.nodes, len(self._fleet.nodes))

    def _options(self, job: Job) -> SpawnOptions:
        options: SpawnOptions = {"priority": PRIORITY_OF_QOS[job.qos]}
        if job.scheduled_at is None:
            left = timedelta(seconds=self._end_if_unscheduled(job) - self._fleet.now)
            options["deadline"] = left
        return options

    def _end_if_unscheduled(self, job: Job) -> float:
        return max(0, job.deleted_at - self._origin) / self._speedup

    async def _work(self, client: AsyncClient) -> None:
        while not self._finished():
            self._note_deadlines()
            if ended := self._take_ended():
                node = self._by_name[ended[0].machine]
                await self._ask(node, self._fleet.settle(client, node, ended))
            elif self._fleet.ledger.waiting and (hungry := self._take_hungry()) is not None:
                await self._ask(hungry, self._fleet.poll(client, hungry))
            else:
                await asyncio.sleep(TICK_SECONDS)

    def _finished(self) -> bool:
        ledger = self._fleet.ledger
        idle = not self._busy and not ledger.running
        return self._all_spawned and idle and not (ledger.waiting and self._hungry)

    def _take_ended(self) -> list[Grant]:
        """Take all leases of one idle node that are due to end."""
        taken: list[Grant] = []
        put_back = []
        while self._ends and self._ends[0][0] <= self._fleet.now:
            item = heapq.heappop(self._ends)
            machine = item[2].machine
            if machine in self._busy or (taken and taken[0].machine != machine):
                put_back.append(item)
            else:
                taken.append(item[2])
        for item in put_back:
            heapq.heappush(self._ends, item)
        return taken

    def _take_hungry(self) -> Node | None:
        for position in range(len(self._hungry) - 1, -1, -1):
            if self._hungry[position].machine.name not in self._busy:
                return self._hungry.pop(position)
        return None

    async def _ask(self, node: Node, call: Awaitable[list[Grant]]) -> None:
        arrivals = self._arrivals
        self._busy.add(node.machine.name)
        try:
            grants = await call
        finally:
            self._busy.remove(node.machine.name)
        for grant in grants:
            end = self._fleet.now + self._run_seconds(self._fleet.ledger.jobs[grant.lease_id])
            heapq.heappush(self._ends, (end, next(self._counter), grant))
        if grants and arrivals == self._arrivals:  # else the newest arrivals made everybody hungry
            self._hungry.insert(self._rng.randint(0, len(self._hungry)), node)

    def _run_seconds(self, job: Job) -> float:
        """Return how long a job runs once it is claimed.

        What ran before the recording began runs what was left of it then; what was never scheduled
        runs until it was deleted.
        """
        if job.scheduled_at is None:
            return max(0.0, self._end_if_unscheduled(job) - self._fleet.now)
        return max(0, job.deleted_at - max(job.scheduled_at, self._origin)) / self._speedup

    async def _reap(self) -> None:
        """Let the queue fail overdue leases now and then, as an operator's timer does."""
        while not self._finished():
            await asyncio.sleep(REAP_SECONDS)
            await self._fleet.clients[0].reap()

    def _note_deadlines(self) -> None:
        while self._deadlines and self._deadlines[0][0] <= self._fleet.now:
            self._fleet.ledger.deadline_passed(heapq.heappop(self._deadlines)[2])

    async def _close_deadlines(self) -> None:
        """Wait for the last deadline and let the queue fail what nobody claimed in time."""
        while self._deadlines:
            await asyncio.sleep(max(0.0, self._deadlines[0][0] - self._fleet.now))
            self._note_deadlines()
        while (await self._fleet.clients[0].reap()).deadlines:
            pass


def recording_start(trace: Trace) -> int:
    """Return the second at which arrivals begin in bulk: the first day with at least 10 new jobs.

    Jobs created before were already running when the recording began; a trace without such a day
    starts with its first job.
    """
    days = Counter(job.created_at // DAY_SECONDS for job in trace.jobs)
    busy = [day for day, count in days.items() if count >= BUSY_DAY_JOBS]
    first = min(job.created_at for job in trace.jobs)
    return max(first, min(busy) * DAY_SECONDS) if busy else first
