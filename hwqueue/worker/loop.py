"""The claim loop: settle what has ended, claim for the free slots, wait for either to change."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from dataclasses import dataclass

import psycopg

from hwqueue.errors import HwqueueError
from hwqueue.stopping import waited
from hwqueue.worker.heartbeat import HeartbeatLoop
from hwqueue.worker.listen import Announced
from hwqueue.worker.outcome import Ended
from hwqueue.worker.runner import Runner
from hwqueue.worker.session import NODE_LOST, NodeSession, in_one_line
from hwqueue.worker.signals import Shutdown

_log = logging.getLogger("hwqueue.worker")

_HINT_EVERY_SECONDS = 5.0
_REFUSED_WAIT_SECONDS = 5.0
_LOOK_AGAIN_SECONDS = 0.02
_LOOK_ONCE_MORE_SECONDS = 0.2


@dataclass(slots=True)
class ClaimLoop:
    """One round trip settles a batch and claims the next.

    While a call is under way more handlers end: the next call settles them all, so the batch
    grows with the load by itself.

    Attributes:
        heartbeat: Told about new claims.
        poll_seconds: Mean wait of an idle worker between two claims.
        announced: Wakes it for work that is announced.
    """

    session: NodeSession
    runner: Runner
    heartbeat: HeartbeatLoop
    shutdown: Shutdown
    poll_seconds: float
    announced: Announced
    _hint_at: float = 0.0
    _is_once_more: bool = True

    async def run(self) -> None:
        """Run until drained: asked to stop, and nothing runs or waits to be settled."""
        runner, draining = self.runner, self.shutdown.draining
        while not (draining.is_set() and not runner.running and not runner.has_ended):
            runner.wake.clear()
            claimed = await self._round()
            if runner.wake.is_set():
                continue
            is_idle = not draining.is_set() and runner.free > 0
            waits = [await self._idle_seconds(claimed) if is_idle else None, runner.due_in]
            woken = await waited(runner.wake, min((wait for wait in waits if wait is not None), default=None))
            self._is_once_more &= woken or claimed > 0 or not is_idle

    def hear(self) -> None:
        """Work is announced: claim once more, unless that comes anyway."""
        if self.runner.free > 0:
            self.announced.wake()

    async def _round(self) -> int:
        """Settle and claim once; how many leases were claimed."""
        ended = self.runner.take_ended()
        is_draining = self.shutdown.draining.is_set()
        quantity = 0 if is_draining else self.runner.wanted
        waits = self.session.in_doubt and not is_draining and bool(self.runner.ahead.waiting)
        if not ended and quantity == 0 and not waits:
            return 0
        try:
            if waits or (quantity and self.session.in_doubt):  # what is ahead starts after it, too
                await self.heartbeat.beat()
            is_heard = self.announced.begin()
            asked_at = time.monotonic()
            claims = await self.session.settle_and_claim(ended, quantity)
            asked = quantity if self.runner.is_quick else 0  # beside what takes long a claim says little
            self.runner.ahead.answered(asked, claims, time.monotonic() - asked_at)
        except NODE_LOST:
            raise
        except (HwqueueError, psycopg.Error) as error:
            await self._after_refusal(ended, error)
            return 0
        finally:
            self.runner.forget_settled()
        if self.session.in_doubt:
            self.runner.wake.set()  # nothing was claimed: at once again, after a heartbeat
        if self.shutdown.draining.is_set():
            self.runner.hand_back(claims)
            self.runner.wake.set()
            return 0
        if quantity:
            self.announced.answered(claims, is_heard)
        if claims:
            self._is_once_more = True
        self.runner.take(claims)
        self.heartbeat.watch(claims)
        self.session.reports.started(claims)
        return len(claims)

    async def _after_refusal(self, ended: list[Ended], error: Exception) -> None:
        """The database refused a batch: one bad settlement must not hold up the others."""
        if ended:
            _log.warning("settling %d leases one by one: %s", len(ended), in_one_line(error))
            for one in ended:
                await self.session.settle(one)
        else:
            wait = _REFUSED_WAIT_SECONDS
            _log.error("claims are refused, trying again in %g s: %s", wait, in_one_line(error))
            await waited(self.shutdown.draining, wait)
        self.runner.wake.set()  # nothing was claimed, or the last of all has ended

    async def _idle_seconds(self, claimed: int) -> float:
        """How long to wait with free slots: a poll, or less when work is known to come sooner.

        Work is announced only after a claim that found none. So one that found some is followed by
        another soon, if no handler ends before that. What is spawned during the first that finds
        none is neither found nor announced: one follows that is not for what is announced.
        """
        wait = self.poll_seconds * random.uniform(0.5, 1.5)
        if claimed:
            return min(wait, _LOOK_AGAIN_SECONDS)
        wait = min(wait, _LOOK_ONCE_MORE_SECONDS) if self._is_once_more else wait
        now = asyncio.get_running_loop().time()
        if now < self._hint_at:
            return wait
        self._hint_at = now + _HINT_EVERY_SECONDS
        try:
            hint = await self.session.retry_after()
        except (HwqueueError, psycopg.Error) as error:
            _log.warning("no hint when to claim next: %s", error)
            return wait
        return wait if hint is None else min(wait, hint)
