"""The worker's hold on the database: one node, its epoch, and calls that outlive lost connections.

Three rules shape this file. A call is never cancelled: cancelling makes psycopg send a cancel to
the server, and a claim that is cancelled while it waits for a synchronous standby has been
granted all the same. And a database that is away never ends the worker: calls are repeated, with
growing random waits, until the worker is told to stop now. All of them may be repeated safely; a
claim that was granted to a lost connection comes back by its timeout. And after a failure nothing
is claimed before a heartbeat has told what became of the node's claims: it could be given a lease
whose handler still runs here.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from functools import cache
from typing import Any, Concatenate, ParamSpec, TypeVar
from uuid import UUID

import psycopg

from hwqueue import calls
from hwqueue.app import App
from hwqueue.client import AsyncClient
from hwqueue.client._drivers import Rows, texts
from hwqueue.client._json import jsonb
from hwqueue.client._json import plain as as_json
from hwqueue.client._settle import MAX_COMPLETED, Batch, read_answer
from hwqueue.connections import with_timeouts
from hwqueue.driver_errors import translate
from hwqueue.errors import BadArgument, HwqueueError, NodeNotYours, NodeSuperseded, NodeUnknown, QueueUnknown
from hwqueue.handler import steps
from hwqueue.types import Claim, Death, Heartbeat, LeaseOutlook, NodeSpec, Verdict
from hwqueue.worker import outcome
from hwqueue.worker.node import announceable
from hwqueue.worker.outbox import LogOutbox, ProgressOutbox
from hwqueue.worker.outcome import Ended
from hwqueue.worker.queues import Queues
from hwqueue.worker.report import Reports, tell_differences, tell_unsettled
from hwqueue.worker.settings import WorkerSettings
from hwqueue.worker.signals import Shutdown
from hwqueue.worker.transient import is_transient, may_come_up

_log = logging.getLogger("hwqueue.worker")

_P = ParamSpec("_P")
_T = TypeVar("_T")
PutOff = Callable[[Sequence[Ended], float], None]
_FIRST_WAIT_SECONDS = 0.25
_LONGEST_WAIT_SECONDS = 30.0
_SYNC_CONNECT_SECONDS = 5
_BUSY_WAIT_SECONDS = 5.0  # each try may hold the node up for nearly a second
_LAST_CALLS_SECONDS = 1.0
_REFUSALS = {"complete": "ResultRefused", "suspend": "SuspensionRefused", "release": "SnoozeRefused"}

NODE_LOST = (NodeSuperseded, NodeNotYours)
"""What says that this worker may not act for its node any more; the session stops it."""


class NodeClient(AsyncClient):
    """A worker's client: it is told of each connection that was cut, and makes the call again.

    What cut it may have lasted longer than the claims, so a heartbeat comes before the next claim.
    """

    def __init__(self, conninfo: str | None) -> None:
        super().__init__(conninfo)
        if self._pool is not None:
            self._pool.hides_cuts = False

    async def announced(self, queues: Collection[str], after: float | None) -> Mapping[str, Any]:
        """What an HTTP server has heard after a time of its own; there is none here."""
        raise NotImplementedError

    async def settle_batch(self, node_id: UUID, node_epoch: int, batch: Batch, **asked: Any) -> Rows:
        """`settle_and_claim` without an object for each settlement; the rows as they come.

        Lists go as text, which costs a fraction of psycopg's arrays.

        Raises: As `settle_and_claim`.
        SQL: settle_and_claim.
        """
        given = {f"p_{name}": value for name, value in asked.items() if value is not None}
        given |= {
            "p_node": node_id,
            "p_epoch": node_epoch,
            "p_settle": jsonb(batch.items, "settle") if batch.items else "[]",
            "p_completed": f"{{{','.join(map(str, batch.completed))}}}",
            "p_completed_tokens": f"{{{','.join(map(str, batch.tokens))}}}",
        }
        given |= {name: _array(given[name]) for name in ("p_queues", "p_tasks") if name in given}
        with translate():
            return await self._runner.run(calls.SETTLE_AND_CLAIM, given)


class NodeSession:
    """The node as the database knows it, for as long as this process lives.

    Args:
        client: A client that is not open yet.
        settings: Of the worker.
        spec: What the node registers as.
        app: The tasks that this worker has handlers for, and its hooks.
        shutdown: Ends all waiting; told when another worker has taken over the node.

    Attributes:
        node_id: The node.
        epoch: Of its latest registration.
        reports: Told what was settled.
        in_doubt: Whether a call has failed since the last heartbeat; then nothing is claimed.
        steps_settled: Set when a step of a workflow's run was settled; who acts on that clears it.
        progress: How far handlers say they have come, until it is sent.
        logs: What handlers log, until it is sent.
        put_off: Takes what could not be settled yet, because another session holds its claim, and
            the seconds to wait before it is tried again.
    """

    def __init__(
        self, client: NodeClient, settings: WorkerSettings, spec: NodeSpec, app: App, shutdown: Shutdown
    ) -> None:
        self.node_id = settings.effective_node_id
        self.epoch = 0
        self.in_doubt = False
        self._client = client
        self._settings = settings
        self._declared = {
            name: defaults for name, task in app.tasks.items() if (defaults := task.defaults.as_json())
        }
        self._spec = replace(
            spec,
            hears_deaths=app.has_hooks("dead"),
            declared=announceable(self._declared, 200) if self._declared else None,
        )
        self._tasks = tuple(app.tasks)
        self.reports = Reports(app, self._outlook)
        self._queues = Queues(settings.queues)
        self._shutdown = shutdown
        self._in_flight: set[asyncio.Future[Any]] = set()
        self._is_claiming = False
        self._granted = 0  # how many calls have claimed
        self.put_off: PutOff | None = None
        self.steps_settled = asyncio.Event()
        self.progress = ProgressOutbox(lambda reports: self.call(AsyncClient.report_progress, reports))
        self.logs = LogOutbox(lambda lines: self.call(AsyncClient.append_logs, lines))

    @property
    def in_flight(self) -> int:
        """Calls that the server has not answered."""
        return len(self._in_flight)

    async def open(self) -> None:
        """Connect and register the node; waits for a server that is away.

        Raises:
            SchemaError: The schema of the database is not one for this package.
            HwqueueError, psycopg.Error: The worker cannot run on this database as it is.

        SQL: schema_version, register_node, compare_tasks, sync_tasks.
        """
        await self._call("connect", lambda client: client.open(), passes=may_come_up)
        await self._call("check the schema", lambda client: client.check_schema())
        await self._call("register the node", self._register)
        await self._compare_tasks()
        _log.info("node %s (%s) registered, epoch %d", self._spec.name, self.node_id, self.epoch)

    async def close(self) -> None:
        """Wait for the calls under way, for a moment, and close the connections that are free.

        One whose call is still under way closes after it: a claim must not be cancelled. A pool
        left open would keep its event loop from ending.
        """
        if self._in_flight:
            await asyncio.wait(self._in_flight, timeout=_LAST_CALLS_SECONDS)
        await self._client.close()

    async def heartbeat(self, claims: Sequence[Claim], longest_wait: float) -> Sequence[Heartbeat]:
        """One statement for the node and all of its claims. SQL: heartbeat_node.

        Args:
            longest_wait: Seconds between two tries, at most.
        """
        held = [(claim.lease_id, claim.claim_token) for claim in claims]
        granted = self._granted
        answers = await self._call(
            "heartbeat",
            lambda client: client.heartbeat_node(self.node_id, self.epoch, claims=held),
            longest_wait=longest_wait,
        )
        self.in_doubt = False
        unnamed = [one for one in answers if one.verdict is Verdict.UNNAMED]
        # a claim whose answer is on its way may have granted them
        if unnamed and granted == self._granted and not self._is_claiming:
            await self._release(unnamed)
        return answers

    async def _release(self, unnamed: Sequence[Heartbeat]) -> None:
        """Hand back what an answer has granted that was lost: nobody works on it."""
        _log.warning("%d leases were granted by answers that were lost; they are handed back", len(unnamed))
        items = [
            {"lease_id": str(one.lease_id), "claim_token": one.claim_token, "outcome": "release"}
            for one in unnamed
        ]
        try:
            await self._settle_and_claim(Batch(items, [], []), self._queues.usable(), 0)
        except NODE_LOST:
            raise
        except HwqueueError as error:
            _log.warning("they are handed back after the next heartbeat: %s", in_one_line(error))

    async def settle_and_claim(self, ended: Sequence[Ended], quantity: int) -> Sequence[Claim]:
        """Settle what ended and claim up to `quantity`, in one commit.

        What another session holds is put off, and is to be settled again. It only settles while
        the session is in doubt, or none of the queues exists.

        Raises:
            HwqueueError, psycopg.Error: The database refuses; nothing was settled or claimed.

        SQL: settle_and_claim.
        """
        if any(one.how.throttles for one in ended):
            ended = [await self._throttle(one) for one in ended]
        plain = [one for one in ended if one.how is outcome.COMPLETED][:MAX_COMPLETED]
        if len(plain) < len(ended):
            done = set(map(id, plain))
            ended = [one for one in ended if id(one) not in done] + plain
        others = ended[: len(ended) - len(plain)]
        batch = Batch(
            items=[as_json(one.how.settle(one.claim), f"settle[{n}]") for n, one in enumerate(others)],
            completed=[one.claim.lease_id for one in plain],
            tokens=[one.claim.claim_token for one in plain],
        )
        if ended:
            # nothing is recorded of a claim that has ended
            await self.progress.flush()
            await self.logs.flush()
        while True:
            queues = self._queues.usable()
            if not queues:
                quantity = 0
            if not ended and quantity == 0:
                return ()
            self._is_claiming = quantity > 0
            try:
                told, claimed = read_answer(await self._settle_and_claim(batch, queues, quantity))
                break
            except QueueUnknown as error:
                if not self._queues.leave_out(error.detail.get("queue"), error):
                    raise
            finally:
                self._granted += self._is_claiming
                self._is_claiming = False
        if quantity and not self.in_doubt:
            self._queues.found(queues)
        self.reports.settled(ended, told)
        if any(_is_step(one.claim) for one in ended):
            self.steps_settled.set()
        busy = [ended[ordinal - 1] for ordinal, settled in told.items() if settled.verdict is Verdict.BUSY]
        if busy and self.put_off is not None:
            self.put_off(busy, _BUSY_WAIT_SECONDS)
        return claimed

    async def _settle_and_claim(self, batch: Batch, queues: Sequence[str], quantity: int) -> Rows:
        return await self._call(
            "settle and claim",
            lambda client: client.settle_batch(
                self.node_id,
                self.epoch,
                batch,
                queues=tuple(queues),
                qty=0 if self.in_doubt else quantity,
                tasks=self._tasks,
                claim_timeout=self._settings.claim_timeout,
            ),
        )

    async def _throttle(self, ended: Ended) -> Ended:
        """Close a limit's lane, in which the lease then waits; without, it waits for a time alone."""
        how = ended.how
        if how.throttles is None or how.delay is None:
            return ended  # it says nothing of a limit, or has closed it before
        try:
            await self.call(
                AsyncClient.throttle_limit,
                how.throttles,
                retry_after=how.delay,
                lease_id=ended.claim.lease_id,
            )
        except HwqueueError as error:
            _log.warning("limit %s is not closed: %s", how.throttles, in_one_line(error))
            return ended._replace(how=replace(how, throttles=None))
        return ended._replace(how=replace(how, delay=None))

    async def settle(self, ended: Ended) -> None:
        """Settle one lease for which a batch was refused.

        A result or a wait that cannot be kept (too large, say) becomes the error of a failed
        attempt; a failure is told without the time of its next one. A settlement that is refused
        for another reason is dropped: the lease comes back by its timeout.
        """
        try:
            await self.settle_and_claim([ended], 0)
        except NODE_LOST:
            raise
        except BadArgument as error:
            kind = _REFUSALS.get(ended.how.kind)
            if kind is not None:
                refusal = outcome.failure(kind, str(error), retry=ended.how.kind == "release")
                await self.settle(Ended(ended.claim, refusal))
            elif ended.how.retry_at is not None:
                await self.settle(ended._replace(how=replace(ended.how, retry_at=None)))
            else:
                tell_unsettled(ended, in_one_line(error))
        except (HwqueueError, psycopg.Error) as error:
            tell_unsettled(ended, in_one_line(error))

    async def ask(self, claim: Claim, call: str, arguments: Mapping[str, Any]) -> Any:
        """Make a call that a handler asks for: see `hwqueue.handler.steps.make_call`."""
        answer = await self._call(
            call.replace("_", " "), lambda client: steps.make_call(client, claim, call, arguments)
        )
        if call in ("add_items", "add_steps"):
            self.steps_settled.set()  # items are spawned at once
        return answer

    async def retry_after(self) -> float | None:
        """After an empty claim: seconds until waiting alone may help, if known. SQL: claim_hint."""
        queues = self._queues.known()
        if not queues:
            return None
        hint = await self.call(AsyncClient.claim_hint, queues, self.node_id)
        return None if hint.retry_after is None else hint.retry_after.total_seconds()

    async def take_deaths(self, limit: int) -> list[Death]:
        """Leases that died without a handler, of what this worker serves. SQL: take_deaths."""
        return await self._call(
            "take deaths", lambda client: client.take_deaths(self.node_id, self.epoch, limit=limit)
        )

    async def leave(self) -> bool:
        """Take the node out of the fleet, once: its worker stops. Returns whether it left.

        A node stays that holds claims, or has what an operator set.

        Raises:
            HwqueueError, psycopg.Error: The database refuses it.

        SQL: deregister_own_node.
        """
        try:
            return await self._shielded(self._client.deregister_own_node(self.node_id, self.epoch))
        except (NodeUnknown, *NODE_LOST):  # no longer there, or no longer ours
            return False

    async def announced(self, queues: Collection[str], after: float | None) -> Mapping[str, Any]:
        """What the server over HTTP hears after a time of its own: see `listen_over_http`."""
        return await self._client.announced(queues, after)

    async def _outlook(self, lease_ids: Sequence[UUID]) -> Iterable[LeaseOutlook]:
        """For log lines only, so it is not repeated. SQL: lease_outlook."""
        return await self._client.lease_outlook(self.node_id, lease_ids)

    async def _compare_tasks(self) -> None:
        """Set the tasks' defaults that are newer than the database's; warn of those that differ.

        Asked once, and not repeated: the worker goes on whatever becomes of it.
        """
        if not self._declared:
            return
        try:
            if found := await self._client.compare_tasks(self._declared):
                if await self._sync_tasks():
                    found = await self._client.compare_tasks(self._declared)
                tell_differences(found)
        except (HwqueueError, psycopg.Error) as error:
            _log.warning("the tasks' options are not compared with set_task: %s", error)

    async def _sync_tasks(self) -> bool:
        """Set what is newer, with the login for it or its own; whether it set anything."""
        dsn = self._settings.sync_dsn
        if self._settings.url is not None:
            return False  # that is for operators
        opened: AbstractAsyncContextManager[AsyncClient] = nullcontext(self._client)
        if dsn is not None:
            opened = AsyncClient(with_timeouts(dsn, seconds=_SYNC_CONNECT_SECONDS))
        try:
            async with opened as client:
                synced = await client.sync_tasks(self._declared, version=self._settings.app_version)
        except psycopg.errors.InsufficientPrivilege as error:
            if dsn is not None:
                _log.warning("--sync-dsn may not set the tasks' defaults: %s", in_one_line(error))
            return False
        if names := [one.task for one in synced if one.is_set]:
            _log.info("the database has the defaults of %s from now on", ", ".join(names))
        return bool(names)

    async def _register(self, client: AsyncClient) -> None:
        self.epoch = await client.register_node(self.node_id, self._spec)

    async def call(
        self,
        method: Callable[Concatenate[AsyncClient, _P], Awaitable[_T]],
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> _T:
        """Call a method of the client until it is answered; not with the epoch, which may rise."""
        what = method.__name__.replace("_", " ")
        return await self._call(what, lambda client: method(client, *args, **kwargs))

    async def _call(
        self,
        what: str,
        call: Callable[[NodeClient], Awaitable[_T]],
        *,
        passes: Callable[[BaseException], bool] = is_transient,
        longest_wait: float = _LONGEST_WAIT_SECONDS,
    ) -> _T:
        """Make a call until the server has answered it or the worker must stop now.

        Args:
            passes: Which errors are waited out.
            longest_wait: Seconds.
        """
        most = _FIRST_WAIT_SECONDS
        while True:
            try:
                return await self._attempt(call)
            except Exception as error:
                if not passes(error) or self._shutdown.now.is_set():
                    raise
                self.in_doubt = True
                wait = random.uniform(0, min(most, longest_wait))
                _log.warning("%s: trying again in %.1f s: %s", what, wait, error)
            await self._shutdown.sleep(wait)
            most = min(2 * most, _LONGEST_WAIT_SECONDS)

    async def _attempt(self, call: Callable[[NodeClient], Awaitable[_T]]) -> _T:
        epoch = self.epoch
        try:
            return await self._shielded(call(self._client))
        except NodeUnknown:
            _log.warning("node %s was deregistered; registering it again", self._spec.name)
            try:
                await self._register(self._client)
            except NodeNotYours as error:
                self._stop_disowned(error)
                raise
            raise
        except NodeSuperseded:
            if epoch != self.epoch:  # another call has registered the node again meanwhile
                return await self._attempt(call)
            self._stop_superseded()
            raise
        except NodeNotYours as error:
            self._stop_disowned(error)
            raise

    async def _shielded(self, call: Awaitable[_T]) -> _T:
        """Wait for a call; who stops waiting for it does not cancel it."""
        answer = asyncio.ensure_future(call)
        self._in_flight.add(answer)
        answer.add_done_callback(self._forget)
        return await asyncio.shield(answer)

    def _forget(self, answer: asyncio.Future[Any]) -> None:
        self._in_flight.discard(answer)
        if not answer.cancelled():
            answer.exception()  # nobody may be waiting for it any more

    def _stop_disowned(self, error: NodeNotYours) -> None:
        if self.epoch:  # else it never had the node: its starter is told
            self._shutdown.abort(f"stopping now: {in_one_line(error)}", superseded=True)

    def _stop_superseded(self) -> None:
        self._shutdown.abort(
            f"stopping now: another worker has registered as node {self._spec.name!r} "
            f"({self.node_id}), and this one's claims have ended; every worker needs a name of "
            "its own",
            superseded=True,
        )


@cache
def _array(names: tuple[str, ...]) -> str:
    """Texts as the server reads them."""
    return texts({"names": list(names)})["names"]


def _is_step(claim: Claim) -> bool:
    return claim.headers is not None and "workflow_run_id" in claim.headers


def in_one_line(error: Exception) -> str:
    """What was refused and the hint, without the server's account of where it stood."""
    first = str(error).splitlines()[:1]
    return "; ".join([*first, *getattr(error, "__notes__", [])])
