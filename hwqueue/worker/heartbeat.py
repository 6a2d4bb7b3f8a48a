"""Telling the database that the node lives and which claims it works on."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Collection, Iterable
from datetime import UTC, datetime, timedelta
from uuid import UUID

import psycopg

from hwqueue.errors import HwqueueError
from hwqueue.stopping import waited
from hwqueue.types import Claim
from hwqueue.worker.runner import Runner, StopReason
from hwqueue.worker.session import NODE_LOST, NodeSession

_log = logging.getLogger("hwqueue.worker")

_SHORTEST_SECONDS = 0.25
_SHORTEST_REFUSED_SECONDS = 1.0
_JITTER = 0.1
_LONGEST_RETRY_SECONDS = 2.0
_HELD_UP_SECONDS = 1.0

_REASON_OF_VERDICT = {
    reason.value: reason for reason in (StopReason.CANCELLED, StopReason.PREEMPTED, StopReason.LOST)
}


class HeartbeatLoop:
    """One statement for all claims, often enough for the one that ends first."""

    def __init__(self, session: NodeSession, runner: Runner, interval: timedelta) -> None:
        self._session = session
        self._runner = runner
        self._interval = interval.total_seconds()
        self._ends_at: dict[tuple[UUID, int], datetime] = {}
        self._due_at = 0.0
        self._sooner = asyncio.Event()
        self._is_asked = False

    def ask(self) -> None:
        """Let one heartbeat begin as soon as it can: after the one that is under way, if any."""
        self._is_asked = True
        self._due_at = self._loop_time()
        self._sooner.set()

    def watch(self, claims: Iterable[Claim]) -> None:
        """Make sure that the next heartbeat comes in time for new claims."""
        new = {_key(claim): claim.expires_at for claim in claims}
        self._ends_at.update(new)
        due_at = self._loop_time() + self._wait(new.values())
        if due_at < self._due_at:
            self._due_at = due_at
            self._sooner.set()

    async def run(self) -> None:
        """Send heartbeats until cancelled."""
        self._due_at = self._loop_time() + (0 if self._is_asked else self._interval)
        while True:
            await self._until_due()
            self._tell_late()
            try:
                await self.beat()
            except NODE_LOST:
                return  # the session has told everybody
            except (HwqueueError, psycopg.Error):
                _log.exception("the heartbeat was refused; the next one follows")
                self._due_at = self._loop_time() + max(
                    self._wait(self._ends_at.values()), _SHORTEST_REFUSED_SECONDS
                )

    async def _until_due(self) -> None:
        while (left := self._due_at - self._loop_time()) > 0:
            self._sooner.clear()
            if not await waited(self._sooner, left):
                return

    def _tell_late(self) -> None:
        """Say what to do when this process, not the database, has let claims expire."""
        late = self._loop_time() - self._due_at
        expired = sum(end <= datetime.now(UTC) for end in self._ends_at.values())
        if late > _HELD_UP_SECONDS and expired:
            _log.warning(
                "the heartbeat comes %.0f s late, for %d claims too late: a handler held up the "
                "event loop, or in a thread the interpreter; such a one needs process=True, or a "
                "longer claim_timeout",
                late,
                expired,
            )

    async def beat(self) -> None:
        """Send one heartbeat, pass its verdicts on, and fix the time of the next.

        Raises:
            HwqueueError, psycopg.Error: The database refuses it.
        """
        self._is_asked = False
        longest_wait = min(self._wait(self._ends_at.values()), _LONGEST_RETRY_SECONDS)
        answers = await self._session.heartbeat(self._runner.held, longest_wait)
        self._runner.stop_claims(
            {
                (answer.lease_id, answer.claim_token): _REASON_OF_VERDICT[answer.verdict]
                for answer in answers
                if answer.verdict in _REASON_OF_VERDICT
            }
        )
        for answer in answers:
            key = (answer.lease_id, answer.claim_token)
            if answer.expires_at is not None:
                self._ends_at[key] = answer.expires_at
            else:  # lost, or finished: its handler may have completed the lease itself, and goes on
                self._ends_at.pop(key, None)
        held = set(map(_key, self._runner.held))
        self._ends_at = {key: end for key, end in self._ends_at.items() if key in held}
        wait = self._wait(self._ends_at.values()) * random.uniform(1 - _JITTER, 1)
        self._due_at = self._loop_time() + (0 if self._is_asked else wait)

    def _wait(self, ends_at: Collection[datetime]) -> float:
        """Seconds until the next heartbeat: a quarter of what is left of the claim that ends first.

        It compares the database's clock with this machine's: a claim timeout has to be well above
        the difference between the two, as between any two nodes.
        """
        if not ends_at:
            return self._interval
        left = (min(ends_at) - datetime.now(UTC)).total_seconds()
        return min(self._interval, max(left / 4, _SHORTEST_SECONDS))

    @staticmethod
    def _loop_time() -> float:
        return asyncio.get_running_loop().time()


def _key(claim: Claim) -> tuple[UUID, int]:
    """A lease may be held twice: a lost run that has not ended yet, and the one after it."""
    return claim.lease_id, claim.claim_token
