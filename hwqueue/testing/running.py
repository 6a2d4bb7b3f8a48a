"""Run what was spawned, in the test's own process."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from hwqueue.app import App
from hwqueue.client import AsyncClient
from hwqueue.testing.bench import Bench, named
from hwqueue.testing.either import of_either
from hwqueue.testing.nodes import Fleet, MadeUpNode
from hwqueue.testing.runs import Drained, Run, raise_for
from hwqueue.types import LeaseState, NodeSpec

Node = NodeSpec | MadeUpNode | Fleet | None
Queues = str | Sequence[str] | None


@of_either
async def drain(
    client: AsyncClient,
    app: App,
    *,
    queue: Queues = None,
    node: Node = None,
    scheduled: bool = False,
    retries: bool = False,
    raises: bool = True,
    limit: int = 1000,
) -> Drained:
    """Run the leases of the app's tasks that are due, one by one, until none is left.

    Each is claimed, its handler called as a worker calls it, and settled. What a handler spawns is
    run, too, and so are the steps of a workflow's run as they are released: it has ended then, if
    all of them are tasks of the app. A gang starts when these nodes have room for all of it; its
    members run one after the other, and are told of each other. Handlers run in this process, those
    of tasks with `process=True` included, and without their timeouts; sync ones run in this thread
    (with an `AsyncClient`: in another one).

    Args:
        client: On the test's database; one on a connection of yours works in its transaction.
        queue: One or several; None: those that the app's tasks name.
        node: What claims: a `NodeSpec`, a node of a `Fleet`, or the fleet, whose nodes claim in
            turn; leases that these may not run are left. None: for each placement a node that is
            made up to fit.
        scheduled: Also run what is delayed, the earliest first.
        retries: Also run the attempts that follow after failed ones, until leases are dead.
        raises: Raise what a handler raises, once its attempt has failed in the database. With
            `retries`, when its lease is dead. False: go on; `Drained.failed` has them.
        limit: Most handlers that may run.

    Returns: What ran, in order.
    Raises: What a handler raised, if `raises`. AssertionError: a handler failed without raising,
        `limit` was reached, the fleet has no nodes, or no made-up node may run a lease or a gang.
    SQL: register_node, claim_task, settle_and_claim, deregister_node and others.
    """
    runs: list[Run] = []
    queues = _queues(app, queue)
    async with Bench(client, app, _claimers(node)) as bench:
        while claim := await bench.claim(queues, scheduled=scheduled, retries=retries):
            if len(runs) == limit:
                await client.release_lease(claim.lease_id, claim.claim_token)
                raise AssertionError(
                    f"{limit} handlers have run and there is more to do: the last was {runs[-1]}; "
                    "raise `limit`, or look for a handler that spawns or snoozes without end"
                )
            run = await bench.run(claim)
            runs.append(run)
            if raises and not (retries and run.state in (LeaseState.PENDING, LeaseState.SCHEDULED)):
                raise_for(run)
    return Drained(tuple(runs))


@of_either
async def run_one(
    client: AsyncClient,
    app: App,
    *,
    queue: Queues = None,
    lease_id: UUID | str | None = None,
    node: Node = None,
    raises: bool = True,
) -> Run:
    """Run one lease, as `drain` does: the next, or a certain one.

    Args:
        lease_id: Run this one, before others and even if it is scheduled for later; `queue` then
            has no meaning. None: the one that is next.
        queue, node, raises: As for `drain`.

    Raises: As `drain`. AssertionError: nothing is due, or the lease does not wait.
    """
    queues = _queues(app, queue)
    async with Bench(client, app, _claimers(node)) as bench:
        claim = await (bench.claim(queues) if lease_id is None else bench.claim_lease(lease_id))
        if claim is None:
            raise AssertionError(f"nothing to run in {named(queues)} for {named(app.tasks)}")
        run = await bench.run(claim)
    if raises:
        raise_for(run)
    return run


@of_either
async def create_queues(client: AsyncClient, app: App) -> None:
    """Create the queues that the app's tasks name, with the default policy.

    Raises: QueueExists, if one has another policy.
    """
    for queue in _queues(app, None):
        await client.create_queue(queue)


def _claimers(node: Node) -> NodeSpec | tuple[MadeUpNode, ...] | None:
    """What claims. Raises: AssertionError, for a fleet without nodes."""
    if isinstance(node, MadeUpNode):
        return (node,)
    if isinstance(node, Fleet):
        assert node.nodes, "the fleet has no nodes that could claim: fleet.add(name, ...)"
        return node.nodes
    return node


def _queues(app: App, queue: Queues) -> list[str]:
    if queue is None:
        return sorted({task.defaults.queue for task in app.tasks.values()})
    return [queue] if isinstance(queue, str) else list(queue)
