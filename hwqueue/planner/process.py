"""The planner's rounds: lead, read, solve, write, and wait for the next one."""

from __future__ import annotations

import asyncio
import logging
import math
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

import psycopg
from psycopg_pool import PoolTimeout

from hwqueue.client import AsyncClient
from hwqueue.errors import HwqueueError
from hwqueue.planner.condense import solve_condensed
from hwqueue.planner.gangs import Gang, plan_gangs
from hwqueue.planner.program import Solution, mean_curve
from hwqueue.planner.reading import Picture, read, read_gangs, read_places
from hwqueue.planner.settings import Settings
from hwqueue.planner.singles import Singles
from hwqueue.stopping import waited
from hwqueue.text import first_line

_log = logging.getLogger("hwqueue.planner")

_MOVED = 0.02  # of a device: a curve that differs by less is not written again before half its TTL
_EXACT = 1e-3  # of all devices: how close the bound of a round is
_REST = 4  # a round that takes long is followed by a pause of this many times as long
_GANG_SECONDS = 5.0  # of a round, for proposing places; then prices are due
_LONGEST = timedelta(hours=1)  # as lead_planner and set_prices have it


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """What a round did.

    Attributes:
        leases: How many wait for GPUs.
        read_seconds, solve_seconds: How long that took.
        devices: GPUs of live nodes.
        allocated: How many of them are in use.
        bound: How many could be in use at most, if all that waits was placed at best.
        written: Of each queue in which something waits: `set`, `kept` (the prices have not moved),
            or what `set_prices` answered.
        gangs: What `reserve_gang` answered, and how often; those without a place in the plan are
            `unplanned`.
        gang_seconds: How long reading, planning and reserving gangs took.
        singles: How many single leases were `proposed`; left out by a bound, `too_many`; what
            `reserve_leases` answered of the others; and what became of those that were reserved
            before: `fetched`, `expired`, `gone`.
        single_seconds: How long reading, planning and reserving single leases took.
        resting: How many nodes get no leases for a while, because they have not fetched some.
    """

    epoch: int
    number: int
    leases: int
    read_seconds: float
    solve_seconds: float
    devices: int
    allocated: float
    bound: float
    written: Mapping[str, str]
    gangs: Mapping[str, int]
    gang_seconds: float
    singles: Mapping[str, int]
    single_seconds: float
    resting: int

    @property
    def seconds(self) -> Mapping[str, float]:
        """How long each part took, as `note_room` has it."""
        return {
            "gangs": self.gang_seconds,
            "leases": self.single_seconds,
            "read": self.read_seconds,
            "solve": self.solve_seconds,
        }

    @property
    def gap(self) -> float:
        """How many devices more could be in use."""
        return self.bound - self.allocated


class Planner:
    """Prices room on GPUs, and chooses places for gangs and for leases of short queues.

    Any number of processes may run one: one of them leads. Needs a login with `hwqueue_planner`.
    Nothing waits for it: its prices run out, and claims then choose as they do without; `reap`
    reserves gangs, too.

    Args:
        client: An open one.
    """

    def __init__(self, client: AsyncClient, settings: Settings | None = None) -> None:
        self._client = client
        self._settings = settings or Settings()
        self._stopping = asyncio.Event()
        self._epoch: int | None = None
        self._has_asked = False
        self._number = 0
        self._ttl = self._settings.ttl
        self._written: dict[str, tuple[float, Sequence[float]]] = {}
        self._singles = Singles(client, self._settings, self._stopping.is_set)
        self._unsaid: Counter[str] = Counter()  # of leases, that no note has told yet

    def stop(self) -> None:
        """Let `run` return after the round under way."""
        self._stopping.set()

    async def run(self) -> None:
        """Plan until `stop`; while the database does not answer, try again.

        The lead ends with it; the last prices run out by themselves.
        """
        try:
            while not self._stopping.is_set():
                began = time.monotonic()
                try:
                    await self.run_once()
                except (psycopg.OperationalError, PoolTimeout) as error:
                    _log.warning("the database did not answer: %s", first_line(error))
                except (HwqueueError, RuntimeError) as error:
                    _log.warning("round %d failed: %s", self._number, first_line(error))
                await self._pause(time.monotonic() - began)
        finally:
            await self.resign()

    async def run_once(self) -> Round | None:
        """Do a round; None while another process leads.

        Raises: QueueUnknown; RuntimeError, where the program is not solved.
        """
        epoch = await self._lead()
        if epoch is None:
            return None
        self._number += 1
        started = time.monotonic()
        gangs = await self._place_gangs(epoch)
        placed_at = time.monotonic()
        singles = await self._singles.assign(self._number, epoch)
        self._unsaid.update(singles)
        began = time.monotonic()
        picture = await read(self._client, self._settings.queues)
        read_at = time.monotonic()
        # in a thread, so that a stop is heard
        solution = await asyncio.to_thread(self._solve, picture) if picture.demands else None
        solved_at = time.monotonic()
        await self._hold(solved_at - started)
        done = Round(
            epoch=epoch,
            number=self._number,
            leases=picture.leases,
            read_seconds=read_at - began,
            solve_seconds=solved_at - read_at,
            devices=picture.devices,
            allocated=picture.allocated,
            bound=picture.allocated + (solution.bound if solution else 0.0),
            written=await self._write(epoch, picture, solution) if solution else {},
            gangs=gangs,
            gang_seconds=placed_at - started,
            singles=singles,
            single_seconds=began - placed_at,
            resting=self._singles.resting,
        )
        await self._note(done)
        _report(done)
        return done

    async def _note(self, done: Round) -> None:
        """Say what was found, for dashboards and metrics."""
        # a bound is known to a thousandth, and reading is not one moment
        allocated = min(max(0.0, done.allocated), done.devices)
        verdict = await self._client.note_room(
            gpus=done.devices,
            allocated=allocated,
            bound=min(max(allocated, done.bound), done.devices),
            ttl=self._ttl,
            round=done.number,
            epoch=done.epoch,
            leases=dict(self._unsaid),
            seconds=done.seconds,
            resting=done.resting,
        )
        if verdict == "noted":
            self._unsaid.clear()

    async def resign(self) -> None:
        """Give the lead up, if it is ours, so that another process goes on at once."""
        if self._epoch is None:
            return
        self._epoch = None
        try:
            await self._client.lead_planner(self._settings.holder, ttl=timedelta(0))
        except (psycopg.Error, PoolTimeout, HwqueueError) as error:
            _log.warning("the lead is not given up, it runs out: %s", first_line(error))

    async def _lead(self) -> int | None:
        """The epoch; None while another process leads."""
        epoch = await self._client.lead_planner(self._settings.holder, ttl=self._ttl)
        if epoch != self._epoch or not self._has_asked:
            self._epoch, self._number = epoch, 0
            self._written.clear()
            _log.info("another process leads" if epoch is None else f"leads, epoch {epoch}")
        self._has_asked = True
        return epoch

    async def _place_gangs(self, epoch: int) -> Counter[str]:
        """Plan gangs and have them reserved, those that are together in the same way at a time."""
        verdicts: Counter[str] = Counter()
        until = time.monotonic() + _GANG_SECONDS
        for gangs in await read_gangs(self._client, self._settings.queues):
            if time.monotonic() >= until:
                break
            await self._place_alike(epoch, gangs, until, verdicts)
        return verdicts

    async def _place_alike(
        self, epoch: int, gangs: Sequence[Gang], until: float, verdicts: Counter[str]
    ) -> None:
        places = await read_places(self._client, gangs)
        seconds = self._settings.gang_timeout.total_seconds()
        # in a thread, so that a stop is heard
        plan = await asyncio.to_thread(plan_gangs, gangs, places, seconds=seconds)
        verdicts["unplanned"] += len(gangs) - len(plan.places)
        for gang_id, place in plan.places:
            if self._stopping.is_set() or time.monotonic() >= until:
                return
            verdict = await self._client.reserve_gang(gang_id, place, round=self._number, epoch=epoch)
            verdicts[verdict] += 1
            if verdict in ("deposed", "old_round"):
                return

    def _solve(self, picture: Picture) -> Solution:
        demands = [demand for each in picture.demands.values() for demand in each]
        seconds = self._settings.solve_timeout.total_seconds()
        return solve_condensed(picture.pools, demands, exact=_EXACT, seconds=seconds)

    async def _hold(self, took: float) -> None:
        """Let lead and prices hold for three rounds like this one, pauses included."""
        between = max(self._settings.interval.total_seconds(), _REST * took) + took
        before = self._ttl
        self._ttl = min(_LONGEST, max(self._settings.ttl, timedelta(seconds=3 * between)))
        if self._ttl > before:
            await self._lead()

    async def _write(self, epoch: int, picture: Picture, solution: Solution) -> dict[str, str]:
        """Write the prices of each queue in which something waits."""
        written = {}
        for queue, demands in picture.demands.items():
            numbers = sorted({number for demand in demands for number in demand.pools})
            curve = mean_curve(picture.pools, solution, numbers)
            written[queue] = await self._set_prices(epoch, queue, curve)
        return written

    async def _set_prices(self, epoch: int, queue: str, curve: Sequence[float]) -> str:
        now = time.monotonic()
        at, before = self._written.get(queue, (-math.inf, curve))
        if now - at < self._ttl.total_seconds() / 2 and _distance(before, curve) <= _MOVED:
            return "kept"
        verdict = await self._client.set_prices(queue, curve, ttl=self._ttl, round=self._number, epoch=epoch)
        if verdict == "set":
            self._written[queue] = (now, curve)
        return verdict

    async def _pause(self, took: float) -> None:
        """Wait for the next round, or until the stop."""
        seconds = max(self._settings.interval.total_seconds(), _REST * took)
        # a little more or less, so that several processes do not ask at the same moment
        await waited(self._stopping, seconds * random.uniform(0.9, 1.1))


def _distance(before: Sequence[float], after: Sequence[float]) -> float:
    """By how much two curves differ at most."""
    return max(abs(one - other) for one, other in zip(before, after, strict=True))


def _counted(verdicts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {verdict}" for verdict, count in verdicts.items() if count) or "none"


def _report(done: Round) -> None:
    percent = 100 / max(1, done.devices)
    _log.info(
        "epoch %d, round %d: %d leases wait for GPUs; read %.3f s, solved %.3f s; of %d GPUs"
        " %.2f %% are allocated, at most %.2f %%, gap %.2f %%; gangs: %s; leases: %s;"
        " prices: %s",
        done.epoch,
        done.number,
        done.leases,
        done.read_seconds,
        done.solve_seconds,
        done.devices,
        percent * done.allocated,
        percent * done.bound,
        percent * done.gap,
        _counted(done.gangs),
        _counted(done.singles),
        ", ".join(f"{queue} {verdict}" for queue, verdict in done.written.items()) or "none",
    )
