"""What a handler asks of the database through its context, of whichever kind that is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from itertools import count
from typing import Any, ParamSpec, overload

import psycopg

from hwqueue.client import AsyncClient
from hwqueue.client._items import Named, items_of
from hwqueue.client._json import plain
from hwqueue.convert import jsonable
from hwqueue.handler import steps
from hwqueue.handler.lease_facts import LeaseFacts
from hwqueue.handler.retrying import Retrying, aresult, words
from hwqueue.handler.steps import Suspended, Wait
from hwqueue.types import AddedItem, AsJson, Checkpoint, Json, StepResult, SubmittedRun

P = ParamSpec("P")


@dataclass(frozen=True, kw_only=True, eq=False)
class AsyncContextCalls(LeaseFacts):
    """The part of a context that asks.

    Attributes:
        ask: Makes a call for the claim.
        connect: Makes a connection for `transaction_step`.
    """

    ask: steps.AsyncAsk = steps.ask_nobody
    connect: steps.AsyncConnect = steps.connect_nowhere

    async def extend(self, by: timedelta) -> datetime:
        """Move the claim's end to `by` from now, for work that outlives a lost connection.

        The worker heartbeats every claim; this is only for a longer lease of life than that.
        Not available in a process.

        Returns:
            When the claim ends unless it is extended again.

        Raises:
            LeaseLost, LeaseCancelled: The claim is no longer this run's.

        SQL: extend_claim.
        """
        until: datetime = await self.ask("extend_claim", extend=by)
        return until

    async def run_input(self) -> Json:
        """What the run was submitted with; None outside of runs. Not available in a process.

        Raises: RunNotFound, LeaseLost, ConfigError.
        SQL: run_input.
        """
        return None if (run := self.run_id) is None else await self.ask("run_input", run_id=run)

    async def result(self, step: str | Named) -> Json:
        """What a step of the run returned; None if it has not completed. Not for a process.

        A binding in the step's params, `result("prepare")`, is read when the step starts. This
        reads when it is called, so it may also look at a step that does not come before.

        Raises: StepUnknown, LeaseLost, ConfigError; BadArgument outside of runs.
        SQL: step_results.
        """
        found = await self.ask("step_results", **self._step_of_run(step), after=-2)
        return found[0].result if found else None

    async def results(self, step: str | Named) -> AsyncIterator[StepResult]:
        """What the items of a step returned, by item; a page is read at a time.

        They are those of a map, the members of a gang, or those that a handler has added with
        `add_items`. An async handler reads them with `async for`.

        Raises: As `result`.
        SQL: step_results.
        """
        asked, after = self._step_of_run(step), -1
        while page := await self.ask("step_results", **asked, after=after):
            for each in page:
                yield each
            after = page[-1].item

    async def add_items(
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
        found: list[AddedItem] = await self.ask("add_items", items=jsonable(items_of(items, task), "items"))
        return found

    async def add_steps(self, spec: Mapping[str, Any] | AsJson) -> SubmittedRun:
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
        found: SubmittedRun = await self.ask("add_steps", spec=plain(spec, "spec"))
        return found

    @overload
    async def step(
        self, name: str, fn: Callable[..., Any], /, *args: Any, retry: Retrying | int | None, **kwargs: Any
    ) -> Json: ...
    @overload
    async def step(self, name: str, fn: Callable[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> Json: ...
    async def step(  # type: ignore[misc]  # P may hold any keyword, retry among them
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
            fn: Returns what has a JSON form, as large as the queue allows params to be. That of an
                async handler may be async; one that is not runs in the event loop.
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
        if saved := await self._found(name):
            return saved.state
        value = await self._called(name, partial(fn, *args, **kwargs), retry)
        result = steps.result_of(name, value)
        await self.ask("save_checkpoint", name=name, state=result)
        return result

    @asynccontextmanager
    async def transaction_step(self, name: str, connection: Any = None) -> AsyncIterator[tuple[Any, bool]]:
        """A step whose checkpoint commits in the same transaction as its effect.

        In an async handler all of it is awaited, `async with` and `await`.

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
        done = await self._found(name) is not None
        given = self.connect() if connection is None else nullcontext(connection)
        async with given as used, _transaction_on(used):
            yield used, done
            if not done:
                await AsyncClient.on(used).save_checkpoint(self.lease_id, self.claim_token, name)

    async def sleep(self, span: timedelta, *, near: steps.Near = None) -> None:
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
        saved = await self._found(wait.name)
        if saved is not None and saved.status == "done":
            return
        if saved is not None or span >= steps.IN_PLACE:
            raise Suspended(wait)
        await self._pause(span.total_seconds())
        await self.ask("save_checkpoint", name=wait.name, state=None)

    async def wait_for(
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
        saved = await self._found(wait.name)
        if saved is not None and saved.status != "open":
            return steps.end_of_wait(saved)
        return steps.end_of_taking(wait, await self.ask("take_signal", signal=signal, name=wait.name))

    async def _called(self, name: str, fn: Callable[[], Any], retry: Retrying | int | None) -> Any:
        """What `fn` returns in the end; each call that failed is a line of the log.

        Raises: What the last call has raised; ConfigError.
        """
        policy = retry if isinstance(retry, Retrying) else Retrying(1 if retry is None else retry)
        for calls in count(1):
            try:
                return await aresult(fn())
            except Exception as error:
                pause = policy.pause(calls, error)
                if pause is None:
                    raise
                self.log(words(name, error, pause), "warning", step=name, calls=calls)
            await self._pause(pause)
        raise AssertionError("unreachable")

    async def _pause(self, seconds: float) -> None:
        """Wait, with the slot kept. Raises: Cancelled, or CancelledError."""
        raise NotImplementedError

    async def _found(self, name: str) -> Checkpoint | None:
        if not self.memory.is_read:
            is_again = steps.was_claimed_before(self.claim)
            self.memory.read(await self.ask("checkpoints") if is_again else ())
        return self.memory.found(name)


@asynccontextmanager
async def async_connected(conninfo: str | None) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """A connection of its own, which PgBouncer may stand before. None: no database is at hand."""
    if conninfo is None:
        steps.connect_nowhere()
    connecting = psycopg.AsyncConnection.connect(conninfo, autocommit=True, prepare_threshold=None)
    async with await connecting as connection:
        await connection.set_isolation_level(psycopg.IsolationLevel.READ_COMMITTED)  # for `save_checkpoint`
        yield connection


def _transaction_on(connection: Any) -> AbstractAsyncContextManager[Any]:
    """A transaction, or a savepoint in the caller's; nothing where that begins by itself."""
    if isinstance(connection, psycopg.AsyncConnection):
        return connection.transaction()
    return nullcontext()
