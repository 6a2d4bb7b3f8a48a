"""Waiting until leases and runs end.

Polling is the truth, and its pauses grow. A wait that takes longer than a moment also listens on a
connection of its own: the end of a claim wakes it. Where nothing can be heard (behind a pooler) it
polls alone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, overload
from uuid import UUID

import psycopg

from hwqueue import calls, types
from hwqueue.client import _pauses
from hwqueue.client._async.part import AsyncPart
from hwqueue.client._async.runner import AsyncPoolRunner
from hwqueue.client._ends import ENDED, result_of, run_timed_out, timed_out, unique_ids
from hwqueue.client._pauses import Pauses, Rate, apause
from hwqueue.errors import ConfigError, LeaseNotFound

R_co = TypeVar("R_co", covariant=True)
X = TypeVar("X")

_MOST_IDS = 1000  # of one call


class AsyncWaiting(AsyncPart):
    """Wait for leases and runs."""

    async def await_leases(
        self, lease_ids: Sequence[UUID | str], *, notify: bool = False
    ) -> list[types.AwaitedLease]:
        """The states of leases now, for a wait of your own; `wait` and its like call it for you.

        Args:
            lease_ids: 1 to 1000.
            notify: Let the end of each that is claimed be notified on channel `hwqueue_ended`.

        Raises: BadArgument.
        SQL: await_leases. Safe inside your transaction: without `notify`; with it the claims stay
            locked until your transaction ends.
        """
        return await self._rows(calls.AWAIT_LEASES, p_lease_ids=list(lease_ids), p_notify=notify or None)

    async def wait(self, lease_id: UUID | str, *, timeout: timedelta | None = None) -> types.Lease:
        """Wait until a lease has completed, failed for good or been cancelled, and return it.

        Args:
            timeout: How long at most; None: for ever.

        Raises: WaitTimeout, BadArgument, LeaseNotFound (also when its queue keeps no completed
            leases), ConfigError (a client made with `on` cannot wait).
        SQL: await_leases, get_lease. Safe inside your transaction: no, it needs its own.
        """
        [lease] = await self.wait_many([lease_id], timeout=timeout)
        return lease

    async def wait_many(
        self, lease_ids: Iterable[UUID | str], *, timeout: timedelta | None = None
    ) -> list[types.Lease]:
        """Wait until all of these leases have ended, and return them in the order given.

        Args:
            timeout: How long at most, for all together; None: for ever.

        Raises: As `wait`; `detail["lease_ids"]` of a WaitTimeout has those that have not ended.
        SQL: await_leases, get_lease. Safe inside your transaction: no, it needs its own.
        """
        wanted = unique_ids(lease_ids)
        ended: dict[UUID, types.Lease] = {}
        async for lease in self._ends(wanted, timeout):
            ended[lease.lease_id] = lease
        return [ended[lease_id] for lease_id in wanted]

    def as_completed(
        self, lease_ids: Iterable[UUID | str], *, timeout: timedelta | None = None
    ) -> AsyncIterator[types.Lease]:
        """The leases as they end, the first to end first; an iterator.

        Args:
            timeout: How long at most, for all together; None: for ever.

        Raises: As `wait_many`, from the iterator.
        SQL: await_leases, get_lease. Safe inside your transaction: no, it needs its own.
        """
        return self._ends(unique_ids(lease_ids), timeout)

    async def result(self, lease_id: UUID | str, *, timeout: timedelta | None = None) -> types.Json:
        """Wait until a lease has ended, and return the result of its handler.

        Args:
            timeout: How long at most; None: for ever.

        Raises: LeaseFailed and LeaseCancelled, whose `detail["error"]` is what the last attempt
            failed with; else as `wait`.
        SQL: await_leases, get_lease. Safe inside your transaction: no, it needs its own.
        """
        return result_of(await self.wait(lease_id, timeout=timeout))

    async def wait_for_run(
        self, run_id: UUID | str, *, timeout: timedelta | None = None
    ) -> types.WorkflowRun:
        """Wait until a run has completed, failed or been cancelled, and return it.

        It only polls, at most once a second: the end of a run is not notified.

        Args:
            timeout: How long at most; None: for ever, also while the run is paused.

        Raises: WaitTimeout, BadArgument, RunNotFound, ConfigError (a client made with `on` cannot
            wait).
        SQL: get_workflow_run. Safe inside your transaction: no, it needs its own.
        """
        self._own_connections()
        pauses = Pauses(timeout)
        while True:
            run = await self._row(calls.GET_WORKFLOW_RUN, p_run=run_id)
            if run.finished_at is not None:
                return run
            if pauses.is_over:
                raise run_timed_out(run, timeout)
            await apause(pauses.next(notified=False))

    async def _ends(self, lease_ids: list[UUID], timeout: timedelta | None) -> AsyncIterator[types.Lease]:
        """What `as_completed` iterates over."""
        left, pauses = dict.fromkeys(lease_ids), Pauses(timeout)
        async with AsyncEndings(self._own_connections()) as endings:
            while left:
                states = await self._states(list(left), endings.is_open)
                for one in states:
                    if one.state is None:
                        raise _gone(one.lease_id)
                    if one.state in ENDED:
                        del left[one.lease_id]
                        yield await self._row(calls.GET_LEASE, p_lease=one.lease_id)
                if not left:
                    return
                if pauses.is_over:
                    raise timed_out(left, timeout)
                if pauses.elapsed >= _pauses.LISTEN_AFTER_SECONDS and await endings.open():
                    continue  # what ended before it listened is seen at once
                await endings.pause(states, pauses)

    async def _states(self, lease_ids: Sequence[UUID], notify: bool) -> list[types.AwaitedLease]:
        states: list[types.AwaitedLease] = []
        for start in range(0, len(lease_ids), _MOST_IDS):
            some = lease_ids[start : start + _MOST_IDS]
            states += await self.await_leases(some, notify=notify)
        return states

    def _own_connections(self) -> AsyncPoolRunner:
        if isinstance(self._runner, AsyncPoolRunner):
            return self._runner
        raise ConfigError(
            "cannot wait on your connection",
            hint="commit first, so that workers see the lease; then wait with a client of its own "
            "connections, Client(dsn) or AsyncClient(dsn)",
        )


class AsyncEndings:
    """The ends of claims, as they are notified, once `open` was called.

    Any login of the database hears notifications and may repeat them, so they have a rate.

    Args:
        runner: Says where to connect.

    Attributes:
        is_open: Whether it listens.
    """

    def __init__(self, runner: AsyncPoolRunner) -> None:
        self._runner = runner
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._was_opened = False
        self._rate = Rate()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._close()

    @property
    def is_open(self) -> bool:
        """Whether it listens."""
        return self._connection is not None

    async def open(self) -> bool:
        """Begin to listen, once; False if it did before or nothing could be heard."""
        if self._was_opened:
            return False
        self._was_opened = True
        self._connection = await self._runner.listen(calls.LISTEN_ENDED)
        return self.is_open

    async def pause(self, states: Sequence[types.AwaitedLease], pauses: Pauses) -> None:
        """Wait for the next look, or until one of these is said to have ended."""
        left = [one for one in states if one.state not in ENDED]
        notified = self.is_open and all(one.state is types.LeaseState.CLAIMED for one in left)
        seconds = pauses.next(notified=notified)
        if self._connection is None:
            await apause(seconds)
            return
        wanted = {one.payload for one in left}
        try:
            async for notification in self._connection.notifies(timeout=seconds):
                if notification.payload in wanted:
                    break
            else:
                return
            if wait := self._rate.take():
                await apause(min(wait, seconds))
                async for _ in self._connection.notifies(timeout=0):
                    pass  # the next look sees what they tell
        except psycopg.Error:
            await self._close()  # the database says at the next look whether it is there

    async def _close(self) -> None:
        if self._connection is not None:
            await self._connection.close()
            self._connection = None


class AsyncSpawned(types.SpawnResult):
    """A spawned lease that can be waited for, with the client that spawned it.

    Attributes:
        client: No field of the dataclass: what prints a result does not print it.
    """

    __slots__ = ("client",)
    client: AsyncWaiting

    @classmethod
    def of(cls, spawned: types.SpawnResult, client: AsyncWaiting) -> Self:
        """The same, with the client to wait with."""
        made = cls(**{name: getattr(spawned, name) for name in types.SpawnResult.__dataclass_fields__})
        object.__setattr__(made, "client", client)
        return made

    async def wait(self, *, timeout: timedelta | None = None) -> types.Lease:
        """See `AsyncClient.wait`."""
        return await self.client.wait(self.lease_id, timeout=timeout)

    async def result(self, *, timeout: timedelta | None = None) -> types.Json:
        """See `AsyncClient.result`."""
        return await self.client.result(self.lease_id, timeout=timeout)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled and copied without the client, whose connections stay here."""
        facts = {name: getattr(self, name) for name in types.SpawnResult.__dataclass_fields__}
        return (partial(types.SpawnResult, **facts), ())


class AsyncTaskSpawned(AsyncSpawned, Generic[R_co]):
    """A lease that a task has spawned. `R_co` is what calling its handler returns.

    Attributes:
        read: What makes of the JSON of a result what the handler returned.
    """

    __slots__ = ("read",)
    read: Callable[[types.Json], Any]

    @classmethod
    def reading(cls, spawned: AsyncSpawned, read: Callable[[types.Json], Any]) -> Self:
        """The same, with what reads its result."""
        made = cls.of(spawned, spawned.client)
        object.__setattr__(made, "read", read)
        return made

    @overload
    async def result(
        self: AsyncTaskSpawned[Coroutine[Any, Any, X]], *, timeout: timedelta | None = None
    ) -> X: ...

    @overload
    async def result(self, *, timeout: timedelta | None = None) -> R_co: ...

    async def result(self, *, timeout: timedelta | None = None) -> Any:
        """What the handler returned, as the type that it is annotated with.

        Raises: BadArgument, if the result does not fit the type; else as `AsyncClient.result`.
        """
        return self.read(await super().result(timeout=timeout))


def _gone(lease_id: UUID) -> LeaseNotFound:
    return LeaseNotFound(
        f"lease {lease_id} does not exist",
        detail={"lease_id": str(lease_id)},
        hint="check the id; a lease goes when its queue's retention is over: with "
        "retain_completed 0 as soon as it completes",
    )
