"""The handlers that run at this moment, and what has become of those that ended."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from time import monotonic
from typing import Any

from hwqueue import tracing
from hwqueue.app import App, Task
from hwqueue.errors import GangNotFound, LeaseError
from hwqueue.handler._async.calls import async_connected
from hwqueue.handler._sync.calls import connected
from hwqueue.handler.attempt_log import numbered
from hwqueue.handler.context import AsyncLeaseContext, LeaseContext
from hwqueue.handler.gang import GangContext
from hwqueue.logs import TellLine
from hwqueue.text import exact_duration
from hwqueue.types import Claim, GangStatus
from hwqueue.worker import outcome, process
from hwqueue.worker.ahead import Ahead
from hwqueue.worker.handling import handle, handle_async
from hwqueue.worker.outcome import Ended, Outcome
from hwqueue.worker.report import tell, tell_started
from hwqueue.worker.session import NodeSession
from hwqueue.worker.settings import WorkerSettings, worker_conninfo

_JITTER = 0.1
_MOST_CLAIMED = 1000  # in a call


class StopReason(Enum):
    """Why a handler was asked to stop."""

    CANCELLED = "cancelled"
    PREEMPTED = "preempted"
    LOST = "lost"
    TIMEOUT = "timeout"
    SHUTDOWN = "shutdown"


@dataclass(slots=True, eq=False)
class Execution:
    """One running handler, or one whose gang is not there yet.

    Attributes:
        began: When, in seconds of the machine's clock; a loop's may count in milliseconds.
        is_short: Whether it is known to end soon, and so to make room for what waits.
        gang: What the handler is told about its gang.
        tell_line: Keeps log lines of a handler that takes no context.
        waits: The handler has not begun: other members of its gang are not there.
        is_over: Its attempt has failed by timeout; the thread still runs, and holds its slot.
    """

    claim: Claim
    task: Task[..., Any]
    began: float
    is_short: bool
    tell_line: TellLine | None = None
    future: asyncio.Future[Any] = field(init=False)
    gang: GangContext | None = None
    waits: bool = False
    cancelled: Callable[[], None] | None = None
    timer: asyncio.TimerHandle | None = None
    reason: StopReason | None = None
    is_over: bool = False

    @property
    def is_held(self) -> bool:
        """Whether its claim is this worker's still."""
        return not self.is_over and self.reason is not StopReason.LOST

    @property
    def timed_out(self) -> Outcome:
        """The failure of a handler that ran too long."""
        timeout = exact_duration(self.task.defaults.timeout)
        return outcome.failure("Timeout", f"ran longer than {timeout}")

    def stop(self, reason: StopReason) -> None:
        """Ask the handler to stop, once: asked again it could not clean up.

        The first reason decides how the lease is settled, but a lost claim is never settled.
        """
        asked = self.reason is not None
        if not asked or reason is StopReason.LOST:
            self.reason = reason
        if asked:
            return
        if self.cancelled is not None:
            self.cancelled()
        if self.waits or self.task.is_async or self.task.process:
            self.future.cancel()

    def conclude(self) -> Outcome | None:
        """What to settle the lease with; None when it is no longer ours to settle.

        Over its timeout it has failed, whatever the handler returns or raises after that.
        """
        if self.reason is StopReason.LOST:
            return None
        if self.reason is StopReason.TIMEOUT:
            return self.timed_out
        if not self.future.cancelled():
            error = self.future.exception()  # of what surrounds the handler
            ended = self.future.result() if error is None else outcome.of_exception(error)
            if ended is not None:
                return ended
        if self.reason is None:
            return outcome.CANCELLED_ITSELF
        return outcome.RELEASED


class Runner:
    """Starts handlers and collects how they ended.

    Args:
        app: Where the handlers are.
        settings: Of the worker.
        session: Makes the calls that handlers ask for, and keeps what they say.
        now: Ends the grace that a child process has over a SIGTERM when set.
        gpu_names: What `CUDA_VISIBLE_DEVICES` calls the node's GPUs, by position.

    Attributes:
        wake: Set whenever a handler has ended.
        ahead: What was claimed ahead of free slots.
    """

    def __init__(
        self,
        app: App,
        settings: WorkerSettings,
        session: NodeSession,
        *,
        now: asyncio.Event,
        gpu_names: tuple[str, ...],
    ) -> None:
        self.wake = asyncio.Event()
        self._app = app
        self._tasks = app.tasks
        self._settings = settings
        self._session = session
        self._now = now
        self._gpu_names = gpu_names
        # for transactions that handlers begin
        self._conninfo = worker_conninfo(settings.dsn) if settings.url is None else None
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(settings.concurrency, thread_name_prefix="hwqueue-handler")
        self._running: dict[int, Execution] = {}
        once = {name for name, task in app.tasks.items() if task.defaults.max_attempts == 1}
        self.ahead = Ahead(settings.concurrency, settings.most_ahead, self._loop.time, once)
        self._is_traced = tracing.is_on()
        self._ended: list[Ended] = []
        self._settling: list[Ended] = []
        self._put_off: list[Ended] = []
        self._put_off_until = 0.0

    @property
    def free(self) -> int:
        """How many more handlers may start."""
        return self._settings.concurrency - len(self._running)

    @property
    def is_quick(self) -> bool:
        """Whether all that runs is short."""
        return all(one.is_short for one in self._running.values())

    @property
    def wanted(self) -> int:
        """How many leases to ask for: for free slots, and ahead of them while all that runs is short."""
        room = self.ahead.room if self.is_quick else 0
        return min(max(0, self.free - len(self.ahead.waiting)) + room, _MOST_CLAIMED)

    @property
    def running(self) -> Collection[Execution]:
        """The handlers that have not ended, without threads that outlived their timeout."""
        return [one for one in self._running.values() if not one.is_over]

    @property
    def has_leftovers(self) -> bool:
        """Whether any handler still runs, threads that outlived their timeout included."""
        return bool(self._running)

    @property
    def held(self) -> list[Claim]:
        """The claims to be kept: of what runs or will, and of what is not settled yet."""
        running = [one.claim for one in self.running if one.is_held]
        left = self._settling + self._ended + self._put_off
        return running + self.ahead.claims + [ended.claim for ended in left]

    @property
    def has_ended(self) -> bool:
        """Whether anything is to be settled, now or later; what has not begun will be."""
        return bool(self._ended or self._put_off or self.ahead.waiting)

    @property
    def due_in(self) -> float | None:
        """Seconds until `take_ended` returns what was put off or waits too long; None: nothing does."""
        put_off = max(0.0, self._put_off_until - self._loop.time()) if self._put_off else None
        return min((due for due in (put_off, self.ahead.due_in) if due is not None), default=None)

    def take_ended(self) -> list[Ended]:
        """What ended since the last call, and what is due again; held until `forget_settled`."""
        self.hand_back(self.ahead.drop_late())
        self._settling, self._ended = self._ended, []
        if self._put_off_until <= self._loop.time():
            self._settling, self._put_off = self._settling + self._put_off, []
        return self._settling

    def put_off(self, ended: Collection[Ended], seconds: float) -> None:
        """Settle these again in `seconds`; their claims stay held until then."""
        self._put_off.extend(ended)
        self._put_off_until = self._loop.time() + seconds

    def forget_settled(self) -> None:
        """What was taken last has been settled, or given up."""
        self._settling = []

    def hand_back(self, claims: Collection[Claim]) -> None:
        """Let claims that were never started be released."""
        self._ended.extend(Ended(claim, outcome.RELEASED) for claim in claims)
        if claims:
            self.wake.set()

    def take(self, claims: Sequence[Claim]) -> None:
        """Start what was granted, as far as slots are free; the others wait for the next ones."""
        self._is_traced = tracing.is_on()
        fit = max(0, self.free - len(self.ahead.waiting))
        for claim in claims[:fit]:
            self.start(claim, self.ahead.is_short(claim))
        self.ahead.wait(claims[fit:])
        self._fill()

    def _fill(self) -> None:
        """Start what waits; where only what takes long would make room, hand it back."""
        if not self.ahead.waiting:
            return
        may_start = not (self._session.in_doubt or self._now.is_set())  # now: the node may be lost
        while may_start and self.free > 0 and (ahead := self.ahead.take()) is not None:
            self.start(*ahead)
        if self.free == 0 and not any(one.is_short for one in self._running.values()):
            self.hand_back(self.ahead.drop())

    def start(self, claim: Claim, is_short: bool = False, gathered: Execution | None = None) -> None:
        """Start the handler of a claim; of a member of a gang once all members are there.

        Args:
            is_short: See `Execution`.
            gathered: The member whose gang is there.
        """
        task = self._tasks[claim.task_name]
        execution = gathered or Execution(claim, task, monotonic(), is_short)
        self._running[id(execution)] = execution
        if gathered is None:
            tell_started(claim)
            if claim.headers is not None and "gang_id" in claim.headers:
                self._gather(execution)
                return
        if task.process:
            execution.future = self._loop.create_task(self._in_process(execution))
        elif task.is_async:
            running = handle_async(task, self._context(execution), is_traced=self._is_traced)
            execution.future = self._loop.create_task(running)
        else:
            run = partial(handle, task, self._context(execution))
            execution.future = self._loop.run_in_executor(self._threads, run)
        timeout = task.defaults.timeout
        if timeout is not None:
            execution.timer = self._loop.call_later(timeout.total_seconds(), self._on_timeout, execution)
        execution.future.add_done_callback(partial(self._on_done, execution))

    def _gather(self, execution: Execution) -> None:
        """Wait for the gang; a lease of none may have such a header of its producer's own."""
        execution.waits = True
        execution.future = self._loop.create_task(self._gang_of(execution.claim))
        execution.future.add_done_callback(partial(self._on_gathered, execution))

    async def _gang_of(self, claim: Claim) -> GangContext | None:
        """The claim's gang, once all members are there; None: it is of none. SQL: gang_status.

        Raises: LeaseError: The claim is not this worker's any more.
        """
        while True:
            try:
                status: GangStatus = await self._session.ask(claim, "gang_status", {})
            except GangNotFound:
                return None
            if status.retry_after is None:
                return GangContext.of(claim, status)
            await asyncio.sleep(status.retry_after.total_seconds() * random.uniform(1 - _JITTER, 1))

    def _on_gathered(self, execution: Execution, gathering: asyncio.Future[Any]) -> None:
        """The gang is there, or the member is not to wait for it any more."""
        error = None if gathering.cancelled() else gathering.exception()
        if execution.reason is None and not gathering.cancelled() and error is None:
            execution.waits = False
            execution.gang = gathering.result()
            execution.began = monotonic()
            self.start(execution.claim, gathered=execution)
            return
        del self._running[id(execution)]
        if isinstance(error, LeaseError):
            execution.reason = execution.reason or StopReason.LOST
        if execution.reason is StopReason.LOST:
            _tell_lost(execution.claim)
        else:
            refusal = error if execution.reason is None else None
            how = outcome.of_exception(refusal) if refusal else outcome.RELEASED
            self._ended.append(Ended(execution.claim, how))
        self.wake.set()
        self._fill()

    def stop_waiting(self, reason: StopReason) -> None:
        """Give up what waits for a slot, or for its gang."""
        self._give_up(lambda _claim: reason)
        for execution in self.running:
            if execution.waits:
                execution.stop(reason)

    def stop_all(self, reason: StopReason) -> None:
        """Ask all running handlers to stop; what waits for a slot does not start."""
        self._give_up(lambda _claim: reason)
        for execution in self.running:
            execution.stop(reason)

    def _give_up(self, reason_of: Callable[[Claim], StopReason | None]) -> None:
        """Let what waits for a slot go, unless there is no reason to."""
        for claim in self.ahead.drop(reason_of):
            if reason_of(claim) is StopReason.LOST:
                _tell_lost(claim)
            else:
                self.hand_back([claim])

    def stop_claims(self, reasons: dict[tuple[Any, int], StopReason]) -> None:
        """Ask those of the given (lease id, claim token) to stop, unless they were already."""
        self._give_up(lambda claim: reasons.get((claim.lease_id, claim.claim_token)))
        for execution in self.running:
            claim = execution.claim
            reason = reasons.get((claim.lease_id, claim.claim_token))
            if reason is None or execution.reason in (reason, StopReason.LOST):
                continue
            tell(logging.INFO, claim, ": stopping its handler: %s", reason.value)
            execution.stop(reason)

    async def wait(self, seconds: float) -> None:
        """Wait until all running handlers have ended, at most `seconds`."""
        futures = [execution.future for execution in self.running]
        if futures:
            await asyncio.wait(futures, timeout=seconds)

    def close(self) -> None:
        """Let the idle threads go; those of running handlers end with their handlers."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def abandon(self) -> list[Ended]:
        """What is left at the very end: not yet settled, or still running and to be released."""
        running = [one.claim for one in self.running if one.is_held]
        left = self._settling + self._ended + self._put_off
        return left + [Ended(claim, outcome.RELEASED) for claim in running + self.ahead.claims]

    def _on_timeout(self, execution: Execution) -> None:
        """Ask the handler to stop. A thread may not, so its attempt fails at once."""
        if execution.future.done():
            return  # in time; `_on_done` comes next
        is_first = execution.reason is None
        execution.stop(StopReason.TIMEOUT)
        in_thread = not (execution.task.is_async or execution.task.process)
        if is_first and in_thread:
            execution.is_over = True
            execution.is_short = False
            self._keep(execution, execution.timed_out)
            self.wake.set()

    def _on_done(self, execution: Execution, _future: object) -> None:
        del self._running[id(execution)]
        if execution.timer is not None:
            execution.timer.cancel()
        if execution.is_over:
            self._tell_late(execution)
        elif (ended := execution.conclude()) is None:
            _tell_lost(execution.claim)
        else:
            self._keep(execution, ended)
        self.wake.set()
        self._fill()

    def _keep(self, execution: Execution, how: Outcome) -> None:
        lasted = monotonic() - execution.began
        self.ahead.ran(execution.claim.task_name, lasted)
        despite = how.kind == "complete" and execution.reason is StopReason.CANCELLED
        self._ended.append(Ended(execution.claim, how, lasted, despite))

    def _tell_late(self, execution: Execution) -> None:
        gave_way = execution.future.cancelled() or execution.future.result() is None
        tell(
            logging.INFO if gave_way else logging.WARNING,
            execution.claim,
            ": its handler %s after its timeout of %s; its slot is free again",
            "gave way" if gave_way else "ended late, and its outcome is dropped,",
            exact_duration(execution.task.defaults.timeout),
        )

    def _context(self, execution: Execution) -> LeaseContext | AsyncLeaseContext | Execution:
        """What a handler is told; where neither it nor what is around it asks, the execution will do."""
        claim, task, loop = execution.claim, execution.task, self._loop
        if not task.takes_context:
            if self._app.keep_logs is not None:
                execution.tell_line = numbered(partial(self._session.logs.tell, claim))
            return execution

        def ask(call: str, /, **arguments: Any) -> Any:
            asked = self._session.ask(claim, call, arguments)
            return asked if task.is_async else asyncio.run_coroutine_threadsafe(asked, loop).result()

        kind: Any = AsyncLeaseContext if task.is_async else LeaseContext
        context: LeaseContext | AsyncLeaseContext = kind(
            claim=claim,
            gang=execution.gang,
            ask=ask,
            connect=partial(async_connected if task.is_async else connected, self._conninfo),
            tell_progress=partial(self._session.progress.tell, claim),
            tell_line=numbered(partial(self._session.logs.tell, claim)),
        )
        execution.cancelled = context.cancelled.set
        return context

    async def _in_process(self, execution: Execution) -> Outcome:
        claim, task = execution.claim, execution.task
        return await process.run_in_process(
            process.job_for(
                task, claim, self._app.child_import_of(task.name), self._app.keep_logs, execution.gang
            ),
            process.environment_for(claim, self._gpu_names, self._settings.pass_environment),
            self._settings.cancel_grace,
            self._now,
            process.Told(
                partial(self._session.progress.tell, claim),
                partial(self._session.logs.tell, claim),
                partial(self._session.ask, claim),
            ),
        )


def _tell_lost(claim: Claim) -> None:
    tell(logging.WARNING, claim, ": lost, its outcome is dropped")
