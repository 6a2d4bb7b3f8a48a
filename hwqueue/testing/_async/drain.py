"""Claim, run and settle what is due, in the test's own process."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import psycopg

from hwqueue.app import App
from hwqueue.client import AsyncClient
from hwqueue.client._pauses import Pauses, apause
from hwqueue.testing.handlers import arun_handler
from hwqueue.testing.nodes import MadeUpNode, node_for
from hwqueue.testing.runs import Drained, Run, raise_for
from hwqueue.types import Claim, LeaseState, LeaseSummary, NodeSpec

_MOST_LISTED = 1000
_PUBLISHED_WITHIN = timedelta(seconds=5)  # the affinity terms of a new placement
_OPEN = (LeaseState.PENDING, LeaseState.SCHEDULED)


async def drain(
    client: AsyncClient,
    app: App,
    *,
    queues: Sequence[str],
    node: NodeSpec | Sequence[MadeUpNode] | None,
    scheduled: bool,
    retries: bool,
    raises: bool,
    limit: int,
) -> Drained:
    """See `hwqueue.testing.drain`."""
    runs: list[Run] = []
    bench = AsyncBench(client, app, node)
    try:
        while claim := await bench.claim(queues, scheduled=scheduled, retries=retries):
            if len(runs) == limit:
                await client.release_lease(claim.lease_id, claim.claim_token)
                raise AssertionError(
                    f"{limit} handlers have run and there is more to do: the last was {runs[-1]}; "
                    "raise `limit`, or look for a handler that spawns or snoozes without end"
                )
            run = await bench.run(claim)
            runs.append(run)
            if raises and not (retries and run.state in _OPEN):
                raise_for(run)
    finally:
        await bench.close()
    return Drained(tuple(runs))


async def run_one(
    client: AsyncClient,
    app: App,
    *,
    queues: Sequence[str],
    lease_id: UUID | str | None,
    node: NodeSpec | Sequence[MadeUpNode] | None,
    raises: bool,
) -> Run:
    """See `hwqueue.testing.run_one`."""
    bench = AsyncBench(client, app, node)
    try:
        if lease_id is None:
            claim = await bench.claim(queues)
            if claim is None:
                raise AssertionError(f"nothing to run in {_named(queues)} for {_named(app.tasks)}")
        else:
            claim = await bench.claim_lease(lease_id)
        run = await bench.run(claim)
    finally:
        await bench.close()
    if raises:
        raise_for(run)
    return run


async def create_queues(client: AsyncClient, queues: Sequence[str]) -> None:
    """See `hwqueue.testing.create_queues`."""
    for queue in queues:
        await client.create_queue(queue)


async def run_lease(
    client: AsyncClient, app: App, lease_id: UUID | str, *, raises: bool
) -> Run | None:
    """Run this lease, if it is of one of the app's tasks; None for others."""
    if (await client.get_lease(lease_id)).task_name not in app.tasks:
        return None
    return await run_one(client, app, queues=(), lease_id=lease_id, node=None, raises=raises)


class AsyncBench:
    """Made-up nodes that claim for one test, one lease at a time.

    Args:
        client: On the test's database.
        app: Whose handlers run.
        node: What claims: a node to register, or some that are, each in turn; None: for each lease
            a node that may run it.
    """

    def __init__(
        self, client: AsyncClient, app: App, node: NodeSpec | Sequence[MadeUpNode] | None = None
    ) -> None:
        self._client = client
        self._app = app
        self._spec = node if isinstance(node, NodeSpec) else None
        self._makes_up = node is None
        self._nodes: list[MadeUpNode] = []
        if node is not None and not isinstance(node, NodeSpec):
            self._nodes += node
        self._own: list[MadeUpNode] = []
        self._held: dict[int, MadeUpNode] = {}
        self._brought_forward: set[UUID] = set()

    async def close(self) -> None:
        """Take the nodes away that were made here; what they did not settle ends."""
        with suppress(psycopg.errors.InFailedSqlTransaction):  # it takes them away itself
            for node in self._own:
                await self._client.deregister_node(node.node_id)

    async def claim(
        self, queues: Sequence[str], *, scheduled: bool = False, retries: bool = False
    ) -> Claim | None:
        """What is due next; with `scheduled` or `retries`, then what would be due later.

        Raises: AssertionError, if no made-up node may run what is due.
        """
        if not self._nodes:
            await self._register(self._spec or {})
        while True:
            if (claim := await self._claim_due(queues)) is not None:
                return claim
            advanced = await self._client.advance_workflows()
            if advanced.released:
                continue  # steps whose parents ended at the same moment, or whose run was resumed
            if advanced.folded and (claim := await self._claim_due(queues)) is not None:
                return claim  # steps after a sleep or a wait that is over
            if not await self._make_due(queues, scheduled=scheduled, retries=retries):
                return None

    async def claim_lease(self, lease_id: UUID | str) -> Claim:
        """Claim this lease; what comes before it goes back, with its attempts.

        Raises: AssertionError, if it is not waiting or no made-up node may run it.
        """
        lease = await self._client.get_lease(lease_id)
        if lease.task_name not in self._app.tasks:
            known = _named(self._app.tasks)
            raise AssertionError(f"the app has no task {lease.task_name!r}, but {known}")
        if lease.state not in _OPEN:
            raise AssertionError(f"lease {lease_id} is {lease.state.value}, it does not wait")
        if lease.state is LeaseState.SCHEDULED:
            await self._bring_forward(lease)
        if not self._nodes:
            await self._register(self._spec or lease.placement)
        others: list[Claim] = []
        try:
            for node in self._nodes:
                while claims := await self._claim_as(node, [lease.queue], [lease.task_name]):
                    if claims[0].lease_id == lease.lease_id:
                        return claims[0]
                    others += claims
        finally:
            for other in others:
                await self._client.release_lease(other.lease_id, other.claim_token)
        raise await self._refused(lease)

    async def run(self, claim: Claim) -> Run:
        """Run the handler of a claim and settle its lease with how it ended."""
        task = self._app.tasks[claim.task_name]
        ended, exception = await arun_handler(
            task, claim, self._client, skips_waits=claim.lease_id in self._brought_forward
        )
        self._brought_forward.discard(claim.lease_id)
        node = self._held[claim.claim_token]
        try:
            answer = await self._client.settle_and_claim(
                node.node_id, node.epoch, [ended.settle(claim)], [claim.queue], qty=0
            )
        except psycopg.errors.InFailedSqlTransaction as refused:
            if exception is None:
                raise
            raise exception from refused  # the handler's own statement has aborted it
        if exception is not None and not isinstance(exception, Exception | SystemExit):
            raise exception  # Ctrl-C, or the test framework's own
        (settled,) = answer.settled
        if "workflow_run_id" in (claim.headers or {}):
            await self._client.advance_workflows()  # as a worker does: a join of any is due now
        return Run(claim=claim, node=node, outcome=ended, exception=exception, state=settled.state)

    async def _claim_due(self, queues: Sequence[str]) -> Claim | None:
        if (claim := await self._claim_anywhere(queues)) is not None:
            return claim
        if not (waiting := await self._waiting(queues)):
            return None
        await self._client.reap()  # so that what was just spawned is seen by all terms
        if not self._makes_up:
            return await self._claim_anywhere(queues)
        for lease in _one_of_each(waiting):
            node = await self._register(lease.placement)
            if claims := await self._claim_as(node, queues, list(self._app.tasks)):
                return claims[0]
        return await self._claim_published(queues, waiting[0])

    async def _claim_published(self, queues: Sequence[str], first: LeaseSummary) -> Claim:
        """Claim once affinity terms are published: open transactions, of other tests, delay that.

        Raises: AssertionError, with why `first` cannot be claimed.
        """
        pauses = Pauses(_PUBLISHED_WITHIN)
        while (await self._client.explain_lease(first.lease_id)).code == "unpublished":
            if pauses.is_over:
                break
            await apause(pauses.next(notified=False))
            await self._client.reap()
            if (claim := await self._claim_anywhere(queues)) is not None:
                return claim
        raise await self._refused(first)

    async def _claim_anywhere(self, queues: Sequence[str]) -> Claim | None:
        for turn, node in enumerate(self._nodes, 1):
            if claims := await self._claim_as(node, queues, list(self._app.tasks)):
                self._nodes = [*self._nodes[turn:], *self._nodes[:turn]]  # the next one's turn
                return claims[0]
        return None

    async def _claim_as(
        self, node: MadeUpNode, queues: Sequence[str], tasks: Sequence[str]
    ) -> list[Claim]:
        claims = await self._client.claim_task(queues, node.node_id, node.epoch, tasks=tasks)
        for claim in claims:
            self._held[claim.claim_token] = node
        return claims

    async def _waiting(self, queues: Sequence[str]) -> list[LeaseSummary]:
        """What is pending, oldest first, of the app's tasks."""
        return await self._listed(queues, LeaseState.PENDING)

    async def _make_due(self, queues: Sequence[str], *, scheduled: bool, retries: bool) -> bool:
        """Bring the next one forward that is wanted; False when there is none."""
        if not (scheduled or retries):
            return False
        later = [
            lease
            for lease in await self._listed(queues, LeaseState.SCHEDULED)
            if (retries if lease.attempt else scheduled)
        ]
        for lease in sorted(later, key=lambda lease: lease.available_at):
            if not await self._waits_for_ever(lease):
                await self._bring_forward(lease)
                return True
        return False

    async def _waits_for_ever(self, lease: LeaseSummary) -> bool:
        """Whether only a signal can let it go on."""
        saved = await self._client.lease_checkpoints(lease.lease_id)
        return any(one.is_suspended and one.waits_until is None for one in saved)

    async def _bring_forward(self, lease: LeaseSummary) -> None:
        self._brought_forward.add(lease.lease_id)
        await self._client.update_lease(lease.lease_id, available_at=lease.created_at)

    async def _listed(self, queues: Sequence[str], state: LeaseState) -> list[LeaseSummary]:
        found: list[LeaseSummary] = []
        for queue in queues:
            found += await self._client.list_leases(queue=queue, state=state, limit=_MOST_LISTED)
        return [lease for lease in reversed(found) if lease.task_name in self._app.tasks]

    async def _register(self, wanted: NodeSpec | MadeUpNode | Mapping[str, Any]) -> MadeUpNode:
        """Register a node as it is given, or one for a placement."""
        assert not isinstance(wanted, MadeUpNode)
        if isinstance(wanted, NodeSpec):
            node_id, spec = uuid4(), wanted
        else:
            node_id, spec = node_for(wanted, str(uuid4()))
        epoch = await self._client.register_node(node_id, spec)
        node = MadeUpNode(node_id=node_id, epoch=epoch, spec=spec)
        self._nodes.append(node)
        self._own.append(node)
        return node

    async def _refused(self, lease: LeaseSummary) -> AssertionError:
        why = await self._client.explain_lease(lease.lease_id)
        return AssertionError(
            f"no made-up node may run lease {lease.lease_id} of task {lease.task_name!r}: "
            f"{why.headline}; asks {why.words}. Name one that may: node=NodeSpec(...)"
        )


def _one_of_each(waiting: Sequence[LeaseSummary]) -> Iterator[LeaseSummary]:
    """The first lease of each placement."""
    seen: list[Mapping[str, Any]] = []
    for lease in waiting:
        if lease.placement not in seen:
            seen.append(lease.placement)
            yield lease


def _named(names: Collection[str]) -> str:
    return ", ".join(map(repr, names)) or "nothing"
