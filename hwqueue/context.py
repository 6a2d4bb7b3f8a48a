"""What a handler is told about the lease it runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, NoReturn, ParamSpec, Self, overload
from uuid import UUID

from hwqueue import retrying, steps
from hwqueue.attempt_log import log_line
from hwqueue.client import AsyncClient, Client
from hwqueue.client._items import Named, items_of
from hwqueue.client._json import plain
from hwqueue.convert import jsonable
from hwqueue.errors import BadArgument, ConfigError
from hwqueue.gang import GangContext
from hwqueue.logs import LogLevel, TellLine
from hwqueue.retrying import Retrying
from hwqueue.steps import Memory, Suspended, Wait
from hwqueue.types import (
    AddedItem,
    AsJson,
    Assignment,
    Checkpoint,
    Claim,
    Json,
    StepResult,
    SubmittedRun,
)

P = ParamSpec("P")

Report = dict[str, Any]
"""What a handler has said of its progress, as the database takes it."""

_MOST_MESSAGE_CHARS = 200
_TOO_MUCH = 2**63  # for a bigint


class Cancelled(BaseException):
    """Raised inside a sync handler that is asked to stop (async ones get `CancelledError`).

    A `BaseException`, so that `except Exception` in a handler does not swallow it.
    """


def progress_report(done: float, message: str, total: float | None) -> Report:
    """What a handler said, as the database takes it.

    Raises: BadArgument.
    """
    for name, value in (("done", done), ("total", total)):
        if value is not None and not 0 <= value < _TOO_MUCH:  # nor is NaN
            raise BadArgument(
                f"{name} must be a number of at least 0 and below 2**63, got {_said(value)}",
                detail={"field": name},
                hint="progress(0.4) is a fraction, progress(40, total=100) a count",
            )
    # what Postgres cannot hold must not fail a handler that has done its work
    text = message.replace("\0", " ").encode("utf-8", "replace").decode()
    said: Report = {"message": text[:_MOST_MESSAGE_CHARS]} if text else {}
    if total is None:
        return {"fraction": min(done, 1.0)} | said
    if total == 0:
        return {"fraction": 1.0} | said
    counts = {"done": int(min(done, total)), "total": int(total)} if total >= 1 else {}
    return {"fraction": min(done / total, 1.0)} | counts | said


def _said(value: float) -> str:
    """A number that Python may refuse to write out in full."""
    if isinstance(value, int) and value.bit_length() > 64:
        return f"an integer of {value.bit_length()} bits"
    return str(value)


def _forget(_said: dict[str, Any]) -> None:
    """Where nobody keeps reports and lines, as in a test of a handler."""


def _refuse_read(*_asked: object) -> NoReturn:
    raise ConfigError(
        "the run of a step cannot be read here: a handler in a process, or one that a test calls, "
        "has no connection",
        hint="bind what it needs into its params: result(...), run_input(...)",
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _LeaseFacts:
    """What both kinds of context tell.

    Attributes:
        claim: The claim that this run is; the properties below are its parts.
        tell_progress: Keeps what `progress` reports.
        tell_line: Keeps what `log` is told.
        memory: What the lease's claims have saved.
        gang: The other members, once all of them are there; None for a lease of no gang.
    """

    claim: Claim
    tell_progress: Callable[[Report], None] = _forget
    tell_line: TellLine = _forget
    memory: Memory = field(default_factory=Memory)
    gang: GangContext | None = None

    @property
    def task_name(self) -> str:
        """The task."""
        return self.claim.task_name

    @property
    def queue(self) -> str:
        """The queue."""
        return self.claim.queue

    @property
    def params(self) -> Json:
        """The params of the lease, as JSON."""
        return self.claim.params

    def with_params(self, params: Json) -> Self:
        """A context that differs in its params: for `call_next` of a middleware."""
        return replace(self, claim=replace(self.claim, params=params))

    @property
    def lease_id(self) -> UUID:
        """The lease."""
        return self.claim.lease_id

    @property
    def claim_token(self) -> int:
        """Fence token of this run: it rises with every grant of the lease.

        Hand it to whatever the handler writes to, so that a stale run can be refused there.
        """
        return self.claim.claim_token

    @property
    def attempt(self) -> int:
        """Number of this attempt, from 1."""
        return self.claim.attempt

    @property
    def headers(self) -> dict[str, Any]:
        """The producer's headers."""
        return dict(self.claim.headers or {})

    @property
    def run_id(self) -> UUID | None:
        """The run of a workflow that the lease is a step of; None outside of runs."""
        found = (self.claim.headers or {}).get("workflow_run_id")
        return UUID(found) if isinstance(found, str) else None

    @property
    def step_name(self) -> str | None:
        """The name of the step in its run; None outside of runs."""
        return (self.claim.headers or {}).get("step") if self.run_id else None

    def _step_of_run(self, step: str | Named) -> tuple[UUID, str]:
        """This run, and the name of a step of it. Raises: BadArgument outside of runs."""
        run = self.run_id
        if run is None:
            raise BadArgument(
                f"lease {self.lease_id} is no step of a run, so it has no other steps",
                hint="submit a workflow; leases that are spawned one by one have no run",
            )
        return run, step if isinstance(step, str) else step.name

    @property
    def item_no(self) -> int | None:
        """The number of the item of a step that this is, from 0; None: it is no item.

        Of a map its place in the list; items that were added come behind that. Of a gang its rank.
        """
        headers = self.claim.headers or {}
        number = headers.get("item") if "workflow_run_id" in headers else None
        return number if isinstance(number, int) else None

    @property
    def assignment(self) -> Assignment | None:
        """What was set aside (CPU, memory, GPUs); None when nothing is counted."""
        return self.claim.assignment

    def progress(self, done: float, message: str = "", *, total: float | None = None) -> None:
        """Say how far the work has come: `progress(0.4)`, `progress(40, "frame 40", total=100)`.

        The lease shows it while it runs, and afterwards with the attempt. It costs nothing to
        call often: the worker sends the last report of each claim, once a second at most.

        Args:
            done: From 0 to 1; with `total` how many of these are done. What is more counts as all.
            message: What is being done; 200 characters of it are kept.
            total: How many there are to do.

        Raises:
            BadArgument: `done` or `total` is negative, 2**63 or more, or no number.

        SQL: report_progress, in the worker.
        """
        self.tell_progress(progress_report(done, message, total))

    def log(self, message: object, level: LogLevel = "info", **fields: Any) -> None:
        """Log a line that is kept with the attempt: `log("texture missing", "warning", frame=7)`.

        The lease shows it within a second, and until the lease is pruned: `hwqueue lease logs`. The
        last 1000 lines of each attempt are kept. It does not go to the worker's own log.

        Args:
            message: What happened, as text; 4096 bytes of it are kept.
            level: debug, info, warning or error.
            **fields: More about it, as JSON; what JSON has no form for is kept as its text. More
                than 4096 bytes of them are left out.

        Raises:
            BadArgument: There is no such level.

        SQL: append_logs, in the worker.
        """
        self.tell_line(log_line(message, level, fields))


@dataclass(frozen=True, kw_only=True, eq=False)
class LeaseContext(_LeaseFacts):
    """For sync handlers, in a thread or a process.

    Attributes:
        cancelled: Set when the handler should stop. Returning normally after that still
            completes the lease; to hand it back, call `raise_if_cancelled`.
    """

    cancelled: threading.Event = field(default_factory=threading.Event)
    extend_claim: Callable[[timedelta], datetime]
    read_results: Callable[[UUID, str, int], Sequence[StepResult]] = _refuse_read
    read_input: Callable[[UUID], Json] = _refuse_read
    ask: steps.Ask = steps.ask_nobody
    connect: steps.Connect = steps.connect_nowhere

    def raise_if_cancelled(self) -> None:
        """Raise `hwqueue.Cancelled` when the handler should stop; call it now and then."""
        if self.cancelled.is_set():
            raise Cancelled

    def extend(self, by: timedelta) -> datetime:
        """Move the claim's end to `by` from now, for work that outlives a lost connection.

        The worker heartbeats every claim; this is only for a longer lease of life than that.
        Not available in a process.

        Returns:
            When the claim ends unless it is extended again.

        Raises:
            LeaseLost, LeaseCancelled: The claim is no longer this run's.

        SQL: extend_claim.
        """
        return self.extend_claim(by)

    def run_input(self) -> Json:
        """What the run was submitted with; None outside of runs. Not available in a process.

        Raises: RunNotFound, LeaseLost, ConfigError.
        SQL: run_input.
        """
        return None if (run := self.run_id) is None else self.read_input(run)

    def result(self, step: str | Named) -> Json:
        """What a step of the run returned; None if it has not completed. Not for a process.

        A binding in the step's params, `result("prepare")`, is read when the step starts. This
        reads when it is called, so it may also look at a step that does not come before.

        Raises: StepUnknown, LeaseLost, ConfigError; BadArgument outside of runs.
        SQL: step_results.
        """
        found = self.read_results(*self._step_of_run(step), -2)
        return found[0].result if found else None

    def results(self, step: str | Named) -> Iterator[StepResult]:
        """What the items of a step returned, by item; a page is read at a time.

        They are those of a map, the members of a gang, or those that a handler has added with
        `add_items`.

        Raises: As `result`.
        SQL: step_results.
        """
        (run, name), after = self._step_of_run(step), -1
        while page := self.read_results(run, name, after):
            yield from page
            after = page[-1].item

    def add_items(
        self, items: Iterable[Mapping[str, Any]], *, task: str | Named | None = None
    ) -> list[AddedItem]:
        """Add items to the step that this handler runs: it ends when they have ended, too.

        Each is a lease of its own, with the queue, placement and options of the step. The result of
        the step is what this handler returns; `results(step)` of a later step has theirs. A handler
        that runs again adds the same names again, which changes nothing.

        Args:
            items: Mappings of `name`, unique within the step, and `params`; `task`, if it is
                another one than for the others. 10,000 at most in a call, 100,000 in a step.
            task: Which runs them; None: the task of this handler.

        Raises:
            LeaseLost, LeaseCancelled: The claim is no longer this run's; nothing is added.
            StepUnknown: The lease is no step of a run.
            IdempotencyMismatch: A name has another task or other params.
            WorkflowTooLarge, BadArgument: It cannot be added.

        SQL: add_items.
        """
        found: list[AddedItem] = self.ask(
            "add_items", items=jsonable(items_of(items, task), "items")
        )
        return found

    def add_steps(self, spec: Mapping[str, Any] | AsJson) -> SubmittedRun:
        """Add steps to the step that this handler runs: it ends when they have ended, too.

        They are a run that is nested in the handler's, with its input, and fail the step if they
        fail. The result of the step is what this handler returns.

        Args:
            spec: A `Workflow`, or what `Client.submit_spec` takes, with a name that is unique
                within the step: a handler that runs again adds it once.

        Raises: As `add_items`; WrongRunState when the run stops, WorkflowInvalid and what else
            `Client.submit_spec` raises.
        SQL: add_steps.
        """
        found: SubmittedRun = self.ask("add_steps", spec=plain(spec, "spec"))
        return found

    @overload
    def step(
        self,
        name: str,
        fn: Callable[..., Any],
        /,
        *args: Any,
        retry: Retrying | int | None,
        **kwargs: Any,
    ) -> Json: ...
    @overload
    def step(
        self, name: str, fn: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs
    ) -> Json: ...
    def step(  # type: ignore[misc]  # P may hold any keyword, retry among them
        self,
        name: str,
        fn: Callable[..., Any],
        /,
        *args: Any,
        retry: Retrying | int | None = None,
        **kwargs: Any,
    ) -> Json:
        """Call `fn(*args, **kwargs)` once for the lease, and keep what it returns.

        A later run of the handler, after a failure or a suspension, gets the result without the
        call. A step whose run ends before its result is saved is called again, so make it
        idempotent, or use `transaction_step`. What it raises fails the attempt.

        Args:
            name: What the step is called, 1 to 190 characters. It is the contract between versions
                of the handler: a step that means something else needs another name. A name that is
                used again in a run is numbered, `charge#2`.
            fn: Returns what has a JSON form, as large as the queue allows params to be.
            retry: How often it is called again in this run before what it raises fails the attempt:
                a `Retrying`, or a number of calls. It holds no steps of its own then: they would
                be numbered on.

        Returns: The result as JSON, the same in each run: lists for tuples.

        Raises:
            BadArgument: The name or the result is not possible.
            LeaseLost, LeaseCancelled: The claim is no longer this run's; nothing is saved.

        SQL: save_checkpoint; checkpoints before the first step, if the lease was claimed before.
        """
        name = self.memory.name(name)
        if saved := self._found(name):
            return saved.state
        value = retrying.call(name, partial(fn, *args, **kwargs), retry, self.log, self._pause)
        result = steps.result_of(name, value)
        self.ask("save_checkpoint", name=name, state=result)
        return result

    @contextmanager
    def transaction_step(self, name: str, connection: Any = None) -> Iterator[tuple[Any, bool]]:
        """A step whose checkpoint commits in the same transaction as its effect.

        Example:
            with context.transaction_step("book") as (connection, done):
                if not done:
                    connection.execute("insert into booking ...")

        Args:
            name: As for `step`.
            connection: On the queue's database, as `Client.on` takes it. One of psycopg begins a
                transaction, or a savepoint in yours; with others you commit. None: a new
                connection of psycopg to the worker's database, not in a child process.

        Yields: The connection, and whether an earlier run has done the step.

        Raises: As `step`, at the end of the block; then nothing of it is committed.

        SQL: save_checkpoint.
        """
        name = self.memory.name(name)
        done = self._found(name) is not None
        given = self.connect() if connection is None else nullcontext(connection)
        with given as used, steps.transaction_on(used):
            yield used, done
            if not done:
                Client.on(used).save_checkpoint(
                    self.lease_id, self.claim_token, name, shard=self.claim.shard_id
                )

    def sleep(self, span: timedelta, *, near: steps.Near = None) -> None:
        """Wait, once for the lease.

        Under 30 s the handler waits where it is, and keeps its slot. Otherwise its run ends here,
        by the exception `hwqueue.Suspended`, and no attempt is used up; when the time is over the
        handler runs again from its top.

        Args:
            span: At most 3650 days.
            near: `self`: a suspended lease prefers the node that it was on for its next run, and
                waits for it as long as its patience says. None: any node that it may have.

        Raises: Suspended, Cancelled, BadArgument.
        SQL: save_checkpoint, or suspend_lease in the worker.
        """
        steps.checked_span(span, "span")
        wait = Wait(self.memory.name("sleep"), None, span, steps.checked_near(near))
        saved = self._found(wait.name)
        if saved is not None and saved.status == "done":
            return
        if saved is not None or span >= steps.IN_PLACE:
            raise Suspended(wait)
        self._pause(span.total_seconds())
        self.ask("save_checkpoint", name=wait.name, state=None)

    def wait_for(
        self, signal: str, *, timeout: timedelta | None = None, near: steps.Near = None
    ) -> Json:
        """Wait until somebody sends the lease a signal, and return the signal's payload.

        If it is not there yet the run ends here, by the exception `hwqueue.Suspended`, and no
        attempt is used up; when it comes the handler runs again from its top. Each signal is taken
        once; a second `wait_for` of the same name waits for the second.

        Args:
            signal: As `Client.signal_lease` names it.
            timeout: At most 3650 days; None: it waits for ever, or until the lease's deadline.
            near: As for `sleep`.

        Raises:
            TimeoutError: It did not come in time; later runs raise it again.
            Suspended, BadArgument, LeaseLost, LeaseCancelled: As for `sleep` and `step`.

        SQL: take_signal, and suspend_lease in the worker.
        """
        if timeout is not None:
            steps.checked_span(timeout, "timeout")
        wait = Wait(self.memory.name(signal), signal, timeout, steps.checked_near(near))
        saved = self._found(wait.name)
        if saved is not None and saved.status != "open":
            return steps.end_of_wait(saved)
        return steps.end_of_taking(wait, self.ask("take_signal", signal=signal, name=wait.name))

    def _pause(self, seconds: float) -> None:
        """Wait, with the slot kept. Raises: Cancelled."""
        if self.cancelled.wait(seconds):
            raise Cancelled

    def _found(self, name: str) -> Checkpoint | None:
        if not self.memory.is_read:
            is_again = steps.was_claimed_before(self.claim)
            self.memory.read(self.ask("checkpoints") if is_again else ())
        return self.memory.found(name)


@dataclass(frozen=True, kw_only=True, eq=False)
class AsyncLeaseContext(_LeaseFacts):
    """For async handlers.

    Attributes:
        cancelled: Set just before `CancelledError` is raised in the handler.
    """

    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    extend_claim: Callable[[timedelta], Awaitable[datetime]]
    read_results: Callable[[UUID, str, int], Awaitable[Sequence[StepResult]]] = _refuse_read
    read_input: Callable[[UUID], Awaitable[Json]] = _refuse_read
    ask: steps.AsyncAsk = steps.ask_nobody
    connect: steps.AsyncConnect = steps.connect_nowhere

    async def extend(self, by: timedelta) -> datetime:
        """See `LeaseContext.extend`."""
        return await self.extend_claim(by)

    async def run_input(self) -> Json:
        """See `LeaseContext.run_input`."""
        return None if (run := self.run_id) is None else await self.read_input(run)

    async def result(self, step: str | Named) -> Json:
        """See `LeaseContext.result`."""
        found = await self.read_results(*self._step_of_run(step), -2)
        return found[0].result if found else None

    async def results(self, step: str | Named) -> AsyncIterator[StepResult]:
        """See `LeaseContext.results`: `async for each in context.results("score")`."""
        (run, name), after = self._step_of_run(step), -1
        while page := await self.read_results(run, name, after):
            for each in page:
                yield each
            after = page[-1].item

    async def add_items(
        self, items: Iterable[Mapping[str, Any]], *, task: str | Named | None = None
    ) -> list[AddedItem]:
        """See `LeaseContext.add_items`."""
        found: list[AddedItem] = await self.ask(
            "add_items", items=jsonable(items_of(items, task), "items")
        )
        return found

    async def add_steps(self, spec: Mapping[str, Any] | AsJson) -> SubmittedRun:
        """See `LeaseContext.add_steps`."""
        found: SubmittedRun = await self.ask("add_steps", spec=plain(spec, "spec"))
        return found

    @overload
    async def step(
        self,
        name: str,
        fn: Callable[..., Any],
        /,
        *args: Any,
        retry: Retrying | int | None,
        **kwargs: Any,
    ) -> Json: ...
    @overload
    async def step(
        self, name: str, fn: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs
    ) -> Json: ...
    async def step(  # type: ignore[misc]  # as above
        self,
        name: str,
        fn: Callable[..., Any],
        /,
        *args: Any,
        retry: Retrying | int | None = None,
        **kwargs: Any,
    ) -> Json:
        """See `LeaseContext.step`. `fn` may be async; one that is not runs in the event loop."""
        name = self.memory.name(name)
        if saved := await self._found(name):
            return saved.state
        call = partial(fn, *args, **kwargs)
        value = await retrying.call_async(name, call, retry, self.log, asyncio.sleep)
        result = steps.result_of(name, value)
        await self.ask("save_checkpoint", name=name, state=result)
        return result

    @asynccontextmanager
    async def transaction_step(
        self, name: str, connection: Any = None
    ) -> AsyncIterator[tuple[Any, bool]]:
        """See `LeaseContext.transaction_step`; the connection is async."""
        name = self.memory.name(name)
        done = await self._found(name) is not None
        given = self.connect() if connection is None else nullcontext(connection)
        async with given as used, steps.async_transaction_on(used):
            yield used, done
            if not done:
                await AsyncClient.on(used).save_checkpoint(
                    self.lease_id, self.claim_token, name, shard=self.claim.shard_id
                )

    async def sleep(self, span: timedelta, *, near: steps.Near = None) -> None:
        """See `LeaseContext.sleep`."""
        steps.checked_span(span, "span")
        wait = Wait(self.memory.name("sleep"), None, span, steps.checked_near(near))
        saved = await self._found(wait.name)
        if saved is not None and saved.status == "done":
            return
        if saved is not None or span >= steps.IN_PLACE:
            raise Suspended(wait)
        await asyncio.sleep(span.total_seconds())
        await self.ask("save_checkpoint", name=wait.name, state=None)

    async def wait_for(
        self, signal: str, *, timeout: timedelta | None = None, near: steps.Near = None
    ) -> Json:
        """See `LeaseContext.wait_for`."""
        if timeout is not None:
            steps.checked_span(timeout, "timeout")
        wait = Wait(self.memory.name(signal), signal, timeout, steps.checked_near(near))
        saved = await self._found(wait.name)
        if saved is not None and saved.status != "open":
            return steps.end_of_wait(saved)
        taken = await self.ask("take_signal", signal=signal, name=wait.name)
        return steps.end_of_taking(wait, taken)

    async def _found(self, name: str) -> Checkpoint | None:
        if not self.memory.is_read:
            is_again = steps.was_claimed_before(self.claim)
            self.memory.read(await self.ask("checkpoints") if is_again else ())
        return self.memory.found(name)
