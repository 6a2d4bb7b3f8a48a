"""Run what was spawned, in the test's own process."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, overload
from uuid import UUID

from hwqueue.app import App
from hwqueue.client import AsyncClient, Client
from hwqueue.testing._async import drain as _async
from hwqueue.testing._sync import drain as _sync
from hwqueue.testing.nodes import Fleet, MadeUpNode
from hwqueue.testing.runs import Drained, Run
from hwqueue.types import NodeSpec

Node = NodeSpec | MadeUpNode | Fleet | None
Queues = str | Sequence[str] | None


@overload
def drain(
    client: AsyncClient,
    app: App,
    *,
    queue: Queues = None,
    node: Node = None,
    scheduled: bool = False,
    retries: bool = False,
    raises: bool = True,
    limit: int = 1000,
) -> Coroutine[Any, Any, Drained]: ...


@overload
def drain(
    client: Client,
    app: App,
    *,
    queue: Queues = None,
    node: Node = None,
    scheduled: bool = False,
    retries: bool = False,
    raises: bool = True,
    limit: int = 1000,
) -> Drained: ...


def drain(
    client: AsyncClient | Client,
    app: App,
    *,
    queue: Queues = None,
    node: Node = None,
    scheduled: bool = False,
    retries: bool = False,
    raises: bool = True,
    limit: int = 1000,
) -> Coroutine[Any, Any, Drained] | Drained:
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
    options: dict[str, Any] = {
        "queues": _queues(app, queue),
        "node": _claimers(node),
        "scheduled": scheduled,
        "retries": retries,
        "raises": raises,
        "limit": limit,
    }
    if isinstance(client, AsyncClient):
        return _async.drain(client, app, **options)
    return _sync.drain(client, app, **options)


@overload
def run_one(
    client: AsyncClient,
    app: App,
    *,
    queue: Queues = None,
    lease_id: UUID | str | None = None,
    node: Node = None,
    raises: bool = True,
) -> Coroutine[Any, Any, Run]: ...


@overload
def run_one(
    client: Client,
    app: App,
    *,
    queue: Queues = None,
    lease_id: UUID | str | None = None,
    node: Node = None,
    raises: bool = True,
) -> Run: ...


def run_one(
    client: AsyncClient | Client,
    app: App,
    *,
    queue: Queues = None,
    lease_id: UUID | str | None = None,
    node: Node = None,
    raises: bool = True,
) -> Coroutine[Any, Any, Run] | Run:
    """Run one lease, as `drain` does: the next, or a certain one.

    Args:
        lease_id: Run this one, before others and even if it is scheduled for later; `queue` then
            has no meaning. None: the one that is next.
        queue, node, raises: As for `drain`.

    Raises: As `drain`. AssertionError: nothing is due, or the lease does not wait.
    """
    options: dict[str, Any] = {
        "queues": _queues(app, queue),
        "lease_id": lease_id,
        "node": _claimers(node),
        "raises": raises,
    }
    if isinstance(client, AsyncClient):
        return _async.run_one(client, app, **options)
    return _sync.run_one(client, app, **options)


@overload
def create_queues(client: AsyncClient, app: App) -> Coroutine[Any, Any, None]: ...


@overload
def create_queues(client: Client, app: App) -> None: ...


def create_queues(client: AsyncClient | Client, app: App) -> Coroutine[Any, Any, None] | None:
    """Create the queues that the app's tasks name, with the default policy.

    Raises: QueueExists, if one has another policy.
    """
    if isinstance(client, AsyncClient):
        return _async.create_queues(client, _queues(app, None))
    _sync.create_queues(client, _queues(app, None))
    return None


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
