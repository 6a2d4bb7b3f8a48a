"""Made-up nodes that claim what is due for a test, run it in the test's process and settle it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Self
from uuid import UUID, uuid4

import psycopg

from hwqueue.app import App
from hwqueue.client import AsyncClient
from hwqueue.client._pauses import Pauses
from hwqueue.errors import GangNotFound
from hwqueue.handler.gang import GangContext
from hwqueue.testing.either import pause
from hwqueue.testing.handlers import run_handler
from hwqueue.testing.nodes import MadeUpNode, node_for, nodes_for_gang
from hwqueue.testing.runs import Run
from hwqueue.types import Claim, Gang, LeaseState, LeaseSummary, NodeSpec

_MOST_LISTED = 1000
_PUBLISHED_WITHIN = timedelta(seconds=5)  # the affinity terms of a new placement
_OPEN = (LeaseState.PENDING, LeaseState.SCHEDULED)
_OF_A_GANG = frozenset({"gang_id", "gang_rank", "gang_size"})  # headers of a member
_NO_ROOM = ("insufficient_capacity", "no_place", "earmarked")
_WITHOUT_ROOM = ("waiting", "earmarked")  # states of a gang


class Bench:
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
        self._held: dict[UUID, MadeUpNode] = {}
        self._brought_forward: set[UUID] = set()
        self._gathered: list[Claim] = []  # members whose gang is there, and who have not run
        self._left: set[UUID] = set()  # gangs that cannot start here

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_raised: object) -> None:
        """Take the nodes away that were made here; what they did not settle ends."""
        with suppress(psycopg.errors.InFailedSqlTransaction):  # it takes them away itself
            await self._release_gathered()
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
            if (claim := self.next_of_gang()) is not None:
                return claim
            await self._start_gangs(queues, retries=retries)
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
            known = named(self._app.tasks)
            raise AssertionError(f"the app has no task {lease.task_name!r}, but {known}")
        if lease.state not in _OPEN:
            raise AssertionError(f"lease {lease_id} is {lease.state.value}, it does not wait")
        if _is_member(lease) and (claim := await self._claim_member(lease)) is not None:
            return claim
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
        gang = await self._gather(claim) if _is_member(claim) else None
        ended, exception = await run_handler(
            task, claim, self._client, gang=gang, skips_waits=claim.lease_id in self._brought_forward
        )
        self._brought_forward.discard(claim.lease_id)
        node = self._held[claim.lease_id]
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
        if gang is not None:
            await self._look_at_gang(gang, stops=ended.kind == "fail")
        return Run(claim=claim, node=node, outcome=ended, exception=exception, state=settled.state)

    async def _claim_due(self, queues: Sequence[str]) -> Claim | None:
        if (claim := await self._claim_anywhere(queues)) is not None:
            return claim
        if not (waiting := await self._listed(queues, LeaseState.PENDING)):
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
            await pause(self._client, pauses.next(notified=False))
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
        self, node: MadeUpNode, queues: Sequence[str], tasks: Sequence[str], qty: int = 1
    ) -> list[Claim]:
        claims = await self._client.claim_task(queues, node.node_id, node.epoch, qty=qty, tasks=tasks)
        self._held |= dict.fromkeys((claim.lease_id for claim in claims), node)
        return claims

    async def _make_due(self, queues: Sequence[str], *, scheduled: bool, retries: bool) -> bool:
        """Bring the next one forward that is wanted; False when there is none."""
        if not (scheduled or retries):
            return False
        later = [
            (lease.available_at, lease)
            for lease in await self._listed(queues, LeaseState.SCHEDULED)
            if (retries if lease.attempt else scheduled) and lease.available_at is not None
        ]
        if later:
            await self._bring_forward(min(later, key=lambda each: each[0])[1])
        return bool(later)

    def next_of_gang(self) -> Claim | None:
        """A member whose gang is there, and who has not run."""
        return self._gathered.pop(0) if self._gathered else None

    async def _start_gangs(self, queues: Sequence[str], *, retries: bool) -> None:
        """Reserve room for the gangs of these queues that wait, the oldest first."""
        waiting = await self._client.list_gangs(state="waiting", limit=_MOST_LISTED)
        for found in reversed(waiting):
            if found.queue in queues and found.gang_id not in self._left:
                gang = await self._client.get_gang(found.gang_id)
                if (retries or not gang.losses) and await self._start_gang(gang):
                    continue
                self._left.add(found.gang_id)

    async def _start_gang(self, gang: Gang) -> bool:
        """Reserve room for a gang; False: this app or these nodes cannot run it.

        Raises: AssertionError, if no nodes can be made up that may run it.
        """
        leases = [
            await self._client.get_lease(member.lease_id)
            for member in gang.members
            if member.state is LeaseState.SCHEDULED
        ]
        if not all(lease.task_name in self._app.tasks for lease in leases):
            return False
        if self._makes_up:
            placements = [lease.placement for lease in leases]
            for node_id, spec in nodes_for_gang(placements, gang.together, gang.same):
                await self._register_as(node_id, spec)
        pauses = Pauses(_PUBLISHED_WITHIN)
        while True:
            await self._client.reap()
            if (await self._client.get_gang(gang.gang_id)).state not in _WITHOUT_ROOM:
                return True
            why = await self._client.explain_gang(gang.gang_id)
            if pauses.is_over or any(not kind.nodes for kind in why.kinds) or why.code in _NO_ROOM:
                break
            await pause(self._client, pauses.next(notified=False))  # until its next try, or others let go
        if self._makes_up:
            raise AssertionError(
                f"no made-up nodes may run gang {gang.gang_id}: {why.headline}. Name some that "
                "may: node=fleet"
            )
        return False

    async def _claim_member(self, lease: LeaseSummary) -> Claim | None:
        """Claim a member once there is room for its gang; None: it is of no gang.

        Raises: AssertionError, if there is none.
        """
        assert lease.headers is not None
        try:
            gang = await self._client.get_gang(lease.headers["gang_id"])
        except GangNotFound:
            return None
        if gang.state in _WITHOUT_ROOM and not await self._start_gang(gang):
            why = await self._client.explain_gang(gang.gang_id)
            raise AssertionError(
                f"gang {gang.gang_id} cannot start here: {why.headline}; the app has {named(self._app.tasks)}"
            )
        gang = await self._client.get_gang(gang.gang_id)
        [member] = [each for each in gang.members if each.lease_id == lease.lease_id]
        node = next((each for each in self._nodes if each.node_id == member.node_id), None)
        if node is None:
            raise AssertionError(f"gang {gang.gang_id} is {gang.state}, on {member.node}")
        self._gathered += await self._claim_as(node, [lease.queue], list(self._app.tasks), _MOST_LISTED)
        [claim] = [each for each in self._gathered if each.lease_id == lease.lease_id]
        self._gathered.remove(claim)
        return claim

    async def _gather(self, claim: Claim) -> GangContext | None:
        """Fetch the other members of a claim's gang; None: it is of no gang.

        Raises: AssertionError, if other nodes than these have some.
        """
        while True:
            try:
                status = await self._client.gang_status(claim.lease_id, claim.claim_token)
            except GangNotFound:
                return None
            if status.ready:
                return GangContext.of(claim, status)
            missing = next((each for each in status.members if each.reserved_until is not None), None)
            node = next((each for each in self._nodes if missing and each.node_id == missing.node_id), None)
            fetched: list[Claim] = []
            if node is not None:
                fetched = await self._claim_as(node, [claim.queue], list(self._app.tasks), status.size)
            if not fetched:
                where = f"reserved on {missing.node}" if missing else "not reserved any more"
                raise AssertionError(
                    f"a member of gang {status.gang_id} is {where}, and not of "
                    f"{named([each.name for each in self._nodes])}"
                )
            self._gathered += fetched

    async def _look_at_gang(self, gang: GangContext, *, stops: bool) -> None:
        """As upkeep does; after a failure members that have not begun stop, unless they go on."""
        if stops and (await self._client.get_gang(gang.gang_id)).on_lost == "stop":
            await self._release_gathered()
        if not self._gathered:
            await self._client.reap()
            await self._client.reap()  # what it has changed itself

    async def _release_gathered(self) -> None:
        while (claim := self.next_of_gang()) is not None:
            await self._client.release_lease(claim.lease_id, claim.claim_token)

    async def _bring_forward(self, lease: LeaseSummary) -> None:
        self._brought_forward.add(lease.lease_id)
        await self._client.update_lease(lease.lease_id, available_at=lease.created_at)

    async def _listed(self, queues: Sequence[str], state: LeaseState) -> list[LeaseSummary]:
        """What is in this state of the app's tasks, oldest first."""
        found: list[LeaseSummary] = []
        for queue in queues:
            found += await self._client.list_leases(queue=queue, state=state, limit=_MOST_LISTED)
        return [lease for lease in reversed(found) if lease.task_name in self._app.tasks]

    async def _register(self, wanted: NodeSpec | Mapping[str, Any]) -> MadeUpNode:
        """Register a node as it is given, or one for a placement."""
        if isinstance(wanted, NodeSpec):
            return await self._register_as(uuid4(), wanted)
        return await self._register_as(*node_for(wanted, str(uuid4())))

    async def _register_as(self, node_id: UUID, spec: NodeSpec) -> MadeUpNode:
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


def _is_member(lease: LeaseSummary | Claim) -> bool:
    """Whether its headers say that it is of a gang; the database knows."""
    return (lease.headers or {}).keys() >= _OF_A_GANG


def _one_of_each(waiting: Sequence[LeaseSummary]) -> Iterator[LeaseSummary]:
    """The first lease of each placement."""
    seen: list[Mapping[str, Any]] = []
    for lease in waiting:
        if lease.placement not in seen:
            seen.append(lease.placement)
            yield lease


def named(names: Collection[str]) -> str:
    """The names, as a message has them."""
    return ", ".join(map(repr, names)) or "nothing"
